"""Writes docs/reference/diagnostics.md from the catalogue and the tested mistakes, so that no example can be wrong."""

from __future__ import annotations

from pathlib import Path

from sagas.definition.catalogue import CATALOGUE
from sagas.definition.parse import parse_text

from .mistakes import ACTIONS, CONNECTIONS, MISTAKES

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/diagnostics.md"

ACROSS_FILES = {
    "SAGA110": "A path that does not exist, a file nobody may read, or bytes that are not UTF-8.",
    "SAGA111": "Two files say `saga: checkout`. The first one found is used, the second is left out.",
    "SAGA211": "`uses: saga` names a saga with a pivot, with `recovery: forward`, or with a confirmed step that has no "
    "`compensate.confirmed`, and the parent could still go backward after it.",
    "SAGA213": "`uses: saga` with `name: chekout`, and the project has no saga of that name.",
}

_HEAD = """# Diagnostics

`saga validate` reads every definition and prints one line per finding, then what to do about it:

```
definitions/checkout.saga.yaml:12:11 SAGA401 error there is no action `payments.chrge`
    Did you mean `payments.charge`?
```

File, line and column count from 1. A code never changes its meaning. Errors keep a definition from being used;
warnings do not, unless you say `--strict`, which turns every warning into an error. `--format text|json|github|sarif`
chooses the form.

Each entry shows one definition that causes it, and what is printed for it. In the examples `shop.reserve`,
`shop.release`, `shop.book` and `shop.tell` are Python actions on a database, `bank.charge` one without.
"""

_GROUPS = {
    "SAGA1": "Structure of the file",
    "SAGA2": "The graph and the kinds of steps",
    "SAGA3": "Expressions",
    "SAGA4": "Actions and arguments",
    "SAGA9": "Later parts of the product",
}


def render() -> str:
    parts = [_HEAD]
    group = ""
    for code, entry in CATALOGUE.items():
        if code[:5] != group:
            group = code[:5]
            parts.append(f"## {_GROUPS[group]}\n")
        parts.append(f"### {code} · {entry.severity} · {entry.title}\n\n{entry.help}\n")
        parts.append(_example(code))
    return "\n".join(parts)


def _example(code: str) -> str:
    if code in ACROSS_FILES:
        return f"Example: {ACROSS_FILES[code]}\n"
    mistake = next(one for one in MISTAKES if one.code == code)
    _, diagnostics = parse_text(mistake.clean, "shop.saga.yaml", ACTIONS, CONNECTIONS)
    found = next(one for one in diagnostics if one.code == code)
    return f"```yaml\n{mistake.clean.rstrip()}\n```\n\n```\n{found}\n    {found.help}\n```\n".replace("\n    \n", "\n")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
