"""The rows of a parked automatic undo, and the SQL that restores them: as text and as an HTML table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from sagas.presentation.styled_text import GIVEN_BY_THE_RUN, Line
from sagas.protocol.parked_rows_view import ParkedRowView
from sagas.protocol.saga_view import ParkedView, SagaView
from sagas.text.shortening import counted

IMAGES = ("before", "after", "when it parked")


def rows_left_to(view: SagaView, step: str) -> list[str]:
    """The steps whose undos still have to restore rows that the undo of ``step`` has left to them."""
    left_to = {row.id: row.compensation.left_to or () for row in view.steps if row.compensation}
    states = {row.id: row.compensation.state for row in view.steps if row.compensation}
    open_heirs: dict[str, None] = {}
    waiting, seen = list(left_to.get(step, ())), {step}
    while waiting:
        heir = waiting.pop(0)
        if heir in seen:
            continue
        seen.add(heir)
        if states.get(heir) == "DONE":
            waiting += left_to[heir]
        else:
            open_heirs[heir] = None  # also that of another saga, of which the view says nothing
    return list(open_heirs)


def row_lines(parked: ParkedView) -> list[Line]:
    """The rows that keep the undo parked, and the SQL to paste."""
    lines: list[Line] = []
    for row in parked.rows or ():
        by = f", changed by {row.changed_by}" if row.changed_by else ""
        lines.append([("  row      ", "dim"), (f"{row.table} {_key(row)}", "bold"), (by, "dim")])
        for title, image in zip(IMAGES, _images(row), strict=False):
            lines.append([(f"    {title:<{max(map(len, IMAGES))}} ", "dim"), (image_text(image), "")])
    if parked.rows_omitted:
        lines.append([(f"    … and {counted(parked.rows_omitted, 'more row')}", "dim")])
    if parked.sql_note:
        lines.append([("  note     ", "dim"), (parked.sql_note, "yellow")])
    if parked.sql:
        lines.append([(f"  SQL that restores the rows as long as they are so, for {parked.system}; then retry", "dim")])
        lines.append([(f"    {GIVEN_BY_THE_RUN}", "dim")])
        if overwritten := _overwritten(parked):
            lines.append([(f"    {overwritten}", "yellow")])
        lines += [[("    " + line, "cyan")] for statement in parked.sql for line in statement.splitlines()]
    return lines


def rows_table(view: SagaView) -> str:
    """An HTML table of these rows for each parked undo; empty if there are none."""
    tables = []
    for parked in view.parked:
        if not parked.rows:
            continue
        rows = "".join(
            f"<tr><td>{escape(row.table)}</td><td>{escape(_key(row))}</td>{_cells(row)}"
            f"<td>{escape(row.changed_by or '')}</td></tr>\n"
            for row in parked.rows
        )
        more = f"<p>and {counted(parked.rows_omitted, 'more row')}</p>\n" if parked.rows_omitted else ""
        sql = f"<pre>{escape(chr(10).join(parked.sql))}</pre>\n" if parked.sql else ""
        sql = f"<p>{escape(GIVEN_BY_THE_RUN)}</p>\n{sql}" if sql else ""
        overwritten = _overwritten(parked)
        sql = f"<p>{escape(overwritten)}</p>\n{sql}" if overwritten and sql else sql
        note = f"<p>{escape(parked.sql_note)}</p>\n" if parked.sql_note else ""
        tables.append(
            f"<h2>Rows of {escape(parked.step)} in {escape(parked.system or '')}</h2>\n<table>\n"
            f"<tr>{''.join(f'<th>{title}</th>' for title in ('table', 'key', *IMAGES, 'changed by'))}</tr>\n"
            f"{rows}</table>\n{more}{note}{sql}"
        )
    return "".join(tables)


def _overwritten(parked: ParkedView) -> str:
    """A warning that the SQL overwrites what others have written; empty if nobody has changed the rows since."""
    writers = list(dict.fromkeys(row.changed_by for row in parked.rows or () if row.changed_by))
    if not writers:
        return ""
    return f"It overwrites what has been written since by {'; '.join(writers)}: compare the rows first."


def _images(row: ParkedRowView) -> tuple[Mapping[str, str] | None, ...]:
    """The row before and after the step, and when it parked, if it could be read."""
    return (row.before, row.after) if row.unread else (row.before, row.after, row.now)


def _cells(row: ParkedRowView) -> str:
    return "".join(map(_cell, _images(row))) + ("<td>not read</td>" if row.unread else "")


def _cell(image: Mapping[str, str] | None) -> str:
    if image is None:
        return "<td>no row</td>"
    return f"<td>{'<br>'.join(escape(f'{name} = {text}') for name, text in image.items())}</td>"


def _key(row: ParkedRowView) -> str:
    return image_text(row.key)


def image_text(image: Mapping[str, str] | None) -> str:
    """An image of a row on one line."""
    return "no row" if image is None else ", ".join(f"{name}={text}" for name, text in image.items())
