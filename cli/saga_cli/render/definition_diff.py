"""The output of `saga diff`, for a terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from saga_cli.output import make_console, to_json
from sagas.presentation.definition_diff import Change, DefinitionDiff
from sagas.presentation.html_page import html_page
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_MAX_VALUE = 60
_CONTEXT = 15
"""Characters of a value; of a longer one those before the first that differs."""
_ATTENTION = "⚠"
_STILL_NEEDED = {
    "actions": "the actions",
    "connections": "the connections",
    "task_queues": "workers of the task queues",
    "sagas": "the definitions of the nested sagas",
    "signals": "triggers for the signals",
}


def print_diff(difference: DefinitionDiff) -> None:
    """Print the changes by step, and what they mean for running sagas."""
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((difference.new.saga, "bold"), f"  {_summary(difference)}"))
    for step, changes in groupby(difference.changes, key=lambda change: change.step):
        out.print()
        out.print(Text("the saga" if step is None else step, style="bold"))
        for change in changes:
            sign = (f"{_ATTENTION} ", "yellow") if change.attention else ("· ", "dim")
            line = Text.assemble("  ", sign, (printable_line(change.field), "cyan"), f"  {_values(change)}")
            out.print(line, soft_wrap=True)
            if change.meaning is not None:
                out.print(Text(f"      {printable_line(change.meaning)}", style="dim"), soft_wrap=True)
    out.print()
    for line in _running_sagas(difference):
        out.print(Text(line), soft_wrap=True)


def diff_page(difference: DefinitionDiff) -> str:
    """Render the differences between two definitions as one HTML page."""
    return html_page(f"{difference.new.saga}: two versions", diff_section(difference))


def diff_section(difference: DefinitionDiff) -> str:
    """Render the differences between two definitions as a part of an HTML page, with headings of its own."""
    rows = "".join(_html_row(change) for change in difference.changes)
    head = "<tr><th>step</th><th>field</th><th>old</th><th>new</th><th>new sagas</th></tr>"
    running = "".join(f"<li>{escape(line)}</li>" for line in _running_sagas(difference))
    return (
        f"<h1>{escape(difference.new.saga)}</h1>\n<p>{escape(_summary(difference))}</p>\n"
        f"<p><small>old {escape(difference.old.digest)}</small><small>new {escape(difference.new.digest)}</small></p>\n"
        + (f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>\n" if rows else "")
        + f"<h2>Running sagas</h2>\n<ul>{running}</ul>\n"
    )


def _html_row(change: Change) -> str:
    cells = [
        change.step or "",
        change.field,
        *("" if value is None else _text(value) for value in (change.old, change.new)),
    ]
    meaning = f"{_ATTENTION} {change.meaning}" if change.attention else change.meaning or ""
    style = ' class="warn"' if change.attention else ""
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td{style}>{escape(meaning)}</td></tr>\n"


def _summary(difference: DefinitionDiff) -> str:
    if not difference.changes:
        return "both versions are the same"
    if difference.is_same:
        return "only descriptive texts differ: nothing changes for any saga"
    count, alerts = len(difference.changes), sum(change.attention for change in difference.changes)
    changes = "1 change" if count == 1 else f"{count} changes"
    return f"{changes}, {alerts} of which need attention" if alerts else changes


def keep_lines(still_needed: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each kind of names that must be kept for sagas that run already, or can still be undone."""
    until = "until those have ended, and can no longer be undone, keep"
    return [f"{until} {_STILL_NEEDED[kind]} {', '.join(names)}" for kind, names in still_needed.items() if names]


def _running_sagas(difference: DefinitionDiff) -> list[str]:
    if difference.is_same:
        return ["running sagas go on as before"]
    lines = ["running sagas go on with the definition with which they started"]
    lines += [f"{line}, which only the old version names" for line in keep_lines(difference.still_needed)]
    if difference.why_not_replaced is None:
        command = "saga resolve ID STEP retry --definition FILE --reason …"
        lines.append(f"a parked one can continue with the new version: {command}")
    else:
        lines.append(f"a parked one cannot continue with the new version: {difference.why_not_replaced}")
    return lines


def _values(change: Change) -> str:
    if change.old is None:
        return f"added: {_shorten(_text(change.new))}"
    if change.new is None:
        return f"removed: {_shorten(_text(change.old))}"
    old, new = _text(change.old), _text(change.new)
    same = next(
        (index for index, (character, other) in enumerate(zip(old, new, strict=False)) if character != other), 0
    )
    if max(len(old), len(new)) > _MAX_VALUE and same > _CONTEXT:
        old, new = (f"…{value[same - _CONTEXT :]}" for value in (old, new))
    return f"{_shorten(old)} → {_shorten(new)}"


def _shorten(text: str) -> str:
    return shorten(printable_line(text), _MAX_VALUE)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
