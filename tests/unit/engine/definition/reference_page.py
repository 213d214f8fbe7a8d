"""Generates reference pages from the code: diagnostics.md, and the tables of language.md.

`python -m tests.unit.engine.definition.reference_page` writes both again.
"""

from __future__ import annotations

from pathlib import Path

from sagas.builtins.registry import BUILTINS, Builtin
from sagas.definition.diagnostic_codes import DIAGNOSTIC_CODES
from sagas.definition.loader import parse_text
from sagas.definition.parser.field_types import Field
from sagas.definition.parser.language import (
    COMPENSATE,
    DEFAULTS,
    KAFKA_TRIGGER,
    NOTIFY,
    PROBE,
    RETRY,
    SAGA,
    SCHEDULE_TRIGGER,
    STEP,
)
from tests.unit.engine.definition.mistakes import MISTAKES

PAGE = Path(__file__).resolve().parents[4] / "docs/reference/diagnostics.md"

LANGUAGE = PAGE.with_name("language.md")
_RECORDS = {
    "saga": SAGA,
    "step": STEP,
    "compensate": COMPENSATE,
    "probe": PROBE,
    "retry": RETRY,
    "defaults": DEFAULTS,
    "trigger": KAFKA_TRIGGER,
    "schedule": SCHEDULE_TRIGGER,
    "notify": NOTIFY,
}

ACROSS_FILES = {
    "SAGA110": "A path that does not exist, a file nobody may read, or bytes that are not UTF-8.",
    "SAGA111": "Two files say `saga: checkout`. None of them is used: the order of the files must not decide.",
    "SAGA142": "A setting that does not exist or has a wrong value. The definitions are checked without it.",
    "SAGA143": "A module of `actions` that does not exist, or raises an error when it is imported. Unknown actions, "
    "which may be its own, are then not reported.",
    "SAGA211": "`uses: saga` names a saga with a pivot, with `recovery: forward`, or with a confirmed step that has no "
    "`compensate.confirmed`, and the parent could still go backward after it.",
    "SAGA215": "`uses: saga` with `input: {sku: 7}`, and the schema of that saga says `sku: {type: string}`, or "
    "requires another field. An expression is not compared; the names of the fields are.",
    "SAGA217": "`uses: saga` with `name: checkout`, and the definition of `checkout`, or of a saga that it nests, "
    "has an error, or is in a file that has one. Neither of them can be started.",
    "SAGA213": "`uses: saga` with `name: chekout`, and the project has no saga of that name.",
}

_HEAD = """# Diagnostics

`saga validate` reads every definition and prints one line per finding, then what to do about it:

```
definitions/checkout.saga.yaml:12:11 SAGA401 error there is no action `payments.chrge`
    did you mean `payments.charge`?
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
    for code, entry in DIAGNOSTIC_CODES.items():
        if code[:5] != group:
            group = code[:5]
            parts.append(f"## {_GROUPS[group]}\n")
        parts.append(f"### {code} · {entry.severity} · {entry.title}\n\n{entry.help}\n")
        parts.append(_example(code))
    return "\n".join(parts)


def _example(code: str) -> str:
    if code in ACROSS_FILES:
        return f"Example: {ACROSS_FILES[code]}\n"
    mistake = next(mistake for mistake in MISTAKES if mistake.code == code)
    _, diagnostics = parse_text(
        mistake.clean,
        "shop.saga.yaml",
        mistake.project,
    )
    reported = next(diagnostic for diagnostic in diagnostics if diagnostic.code == code)
    return f"```yaml\n{mistake.clean.rstrip()}\n```\n\n```\n{reported}\n    {reported.help}\n```\n".replace(
        "\n    \n", "\n"
    )


def render_language(page: str) -> str:
    """The page with its tables written again."""
    for name, record in _RECORDS.items():
        rows = [
            f"| `{field.name}` | {_summary(field)} |"
            for field in record.fields
            if name != "probe" or field not in COMPENSATE.fields
        ]
        page = _between(page, f"<!-- table: {name} -->", ["| field | meaning |", "|---|---|", *rows])
    rows = [f"| `{name.name}` | {name.summary} | {_arguments(name)} |" for name in BUILTINS.values()]
    return _between(page, "<!-- actions -->", ["| `uses` | what it does | arguments |", "|---|---|---|", *rows])


def _summary(field: Field) -> str:
    return field.summary + (" (required)" if field.required else "")


def _arguments(builtin: Builtin) -> str:
    return ", ".join(f"`{name}`" for name in builtin.parameters["properties"])


def _between(page: str, marker: str, lines: list[str]) -> str:
    before, rest = page.split(marker + "\n", 1)
    after = rest[rest.index("<!-- end -->") :]
    return before + marker + "\n" + "\n".join(lines) + "\n" + after


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    LANGUAGE.write_text(render_language(LANGUAGE.read_text(encoding="utf-8")), encoding="utf-8")
