"""The output of `saga diff`, for a terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from saga_cli.output import make_console, to_json
from sagas.presentation.definition_diff import Change, DefinitionDiff
from sagas.presentation.html_page import html_page

_MAX_VALUE = 60
_ATTENTION = "⚠"
_STILL_NEEDED = {"actions": "actions", "connections": "connections", "task_queues": "workers of the task queues"}


def print_diff(found: DefinitionDiff) -> None:
    """Print the changes by step, and what they mean for running sagas."""
    from rich.padding import Padding
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((found.new.saga, "bold"), f"  {_summary(found)}"))
    for step, changes in groupby(found.changes, key=lambda change: change.step):
        out.print()
        out.print(Text("the saga" if step is None else step, style="bold"))
        for change in changes:
            sign = (f"{_ATTENTION} ", "yellow") if change.attention else ("· ", "dim")
            line = Text.assemble(sign, (change.field, "cyan"), f"  {_values(change)}")
            out.print(Padding(line, (0, 0, 0, 2), expand=False))
            if change.meaning is not None:
                out.print(Padding(Text(change.meaning, style="dim"), (0, 0, 0, 6), expand=False))
    out.print()
    for line in _running_sagas(found):
        out.print(Text(line))


def diff_page(found: DefinitionDiff) -> str:
    """The same as one HTML page."""
    rows = "".join(_html_row(change) for change in found.changes)
    head = "<tr><th>step</th><th>field</th><th>old</th><th>new</th><th>new sagas</th></tr>"
    running = "".join(f"<li>{escape(line)}</li>" for line in _running_sagas(found))
    body = (
        f"<h1>{escape(found.new.saga)}</h1>\n<p>{escape(_summary(found))}</p>\n"
        f"<p><small>old {escape(found.old.digest)}</small><small>new {escape(found.new.digest)}</small></p>\n"
        + (f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>\n" if rows else "")
        + f"<h2>Running sagas</h2>\n<ul>{running}</ul>"
    )
    return html_page(f"{found.new.saga}: two versions", body)


def _html_row(change: Change) -> str:
    cells = [change.step or "", change.field, *("" if one is None else _text(one) for one in (change.old, change.new))]
    meaning = f"{_ATTENTION} {change.meaning}" if change.attention else change.meaning or ""
    style = ' class="warn"' if change.attention else ""
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td{style}>{escape(meaning)}</td></tr>\n"


def _summary(found: DefinitionDiff) -> str:
    if not found.changes:
        return "both versions are the same"
    if found.is_same:
        return "only descriptive texts differ: nothing changes for any saga"
    count, alerts = len(found.changes), sum(change.attention for change in found.changes)
    changes = "1 change" if count == 1 else f"{count} changes"
    return f"{changes}, {alerts} of which need attention" if alerts else changes


def _running_sagas(found: DefinitionDiff) -> list[str]:
    if found.is_same:
        return ["running sagas go on as before"]
    lines = ["running sagas go on with the definition with which they started"]
    for kind, names in found.still_needed.items():
        if names:
            lines.append(
                f"until those have ended, and can no longer be undone, keep the {_STILL_NEEDED[kind]} "
                f"{_listed(names)}, which only the old version names"
            )
    if found.why_not_replaced is None:
        lines.append("a parked one can continue with the new version: saga resolve ID STEP retry --definition FILE")
    else:
        lines.append(f"a parked one cannot continue with the new version: {found.why_not_replaced}")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _values(change: Change) -> str:
    if change.old is None:
        return f"added: {_short(change.new)}"
    if change.new is None:
        return f"removed: {_short(change.old)}"
    return f"{_short(change.old)} → {_short(change.new)}"


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
