"""The report on a period, as tables for a terminal and as one page of HTML that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from saga_cli.output import echo, print_table
from saga_workers.views.held_counts import LIST_ONE_BY_ONE
from saga_workers.views.period_report import STATE_COLUMNS, PeriodReport
from sagas.presentation.html_page import html_page
from sagas.presentation.styled_text import format_duration, local_time, parse_timestamp
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command
from sagas.text.shortening import counted, join_names


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. ``rows``: of a table with this ``header``; ``note`` follows it, or stands alone."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def print_report(report: PeriodReport) -> None:
    echo(_heading(report))
    for section in _sections(report):
        echo("", section.title)
        if section.rows:
            print_table(section.rows, section.header, indent=2)
        if section.note:
            echo(f"  {section.note}")


def report_page(report: PeriodReport) -> str:
    """The report as a page."""
    heading = _heading(report)
    body = "\n".join([f"<h1>{escape(heading)}</h1>", *map(_section_html, _sections(report))])
    return html_page(heading, body)


def _section_html(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.rows:
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in section.header)
        rows = "\n".join(
            "<tr>" + "".join(f"<td>{escape(printable_line(cell))}</td>" for cell in row) + "</tr>"
            for row in section.rows
        )
        parts.append(f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>')
    if section.note:
        parts.append(f"<p>{escape(printable_line(section.note))}</p>")
    return "\n".join(parts)


def _heading(report: PeriodReport) -> str:
    about = "Sagas" if report.saga is None else f"Sagas of {report.saga}"
    return printable_line(f"{about} since {_with_zone(report.since)}, as of {_with_zone(report.until)}")


def _with_zone(at: datetime) -> str:
    return f"{local_time(at)} {at.astimezone().strftime('%Z')}"


def _sections(report: PeriodReport) -> list[Section]:
    sections = [_outcomes(report), _slowest(report), _parked(report), _residue(report)]
    if report.unserved:
        sections.append(_unserved(report))
    rows = [[f"{hold.text}; {report.held.words(hold)}", hold.resume_command] for hold in report.holds]
    if report.held.one_by_one:
        rows.append([report.held.one_by_one_text, LIST_ONE_BY_ONE])
    if rows:
        sections.append(Section("Held back now", ("why", "command"), rows))
    if report.unknown:
        sections.append(Section("Not in this report", (), [], "; ".join(report.unknown)))
    return sections


def _outcomes(report: PeriodReport) -> Section:
    header = ("saga", "started", "open", *STATE_COLUMNS, "on average", "longest")
    rows = [
        [
            count.saga,
            str(count.started),
            str(count.open),
            *(str(count.states.get(state, 0)) for state in STATE_COLUMNS),
            _length(count.mean_seconds),
            _length(count.longest_seconds),
        ]
        for count in report.sagas
    ]
    if len(rows) > 1:
        total = [str(report.total(state)) for state in STATE_COLUMNS]
        started, still_open = (sum(values) for values in zip(*((c.started, c.open) for c in report.sagas), strict=True))
        rows.append(["all", str(started), str(still_open), *total, "", ""])
    return Section("Outcomes", header, rows, "" if rows else "no saga has started")


def _slowest(report: PeriodReport) -> Section:
    header = ("saga", "step", "sagas", "attempts", "on average", "longest", "where")
    rows = [
        [
            step.saga,
            step.step,
            str(step.count),
            str(step.attempts),
            _length(step.mean_seconds),
            _length(step.longest_seconds),
            saga_command("show", step.saga_id),
        ]
        for step in report.slowest_steps
    ]
    read = f"Of the {counted(report.sagas_read, 'saga')} that took longest." if report.sagas_read > 1 else ""
    return Section("Slowest steps", header, rows, read if rows else "not known" if report.unknown else "none")


def _parked(report: PeriodReport) -> Section:
    header = ("count", "saga", "step", "oldest", "error", "ids", "command")
    rows = [
        [
            str(group["count"]),
            group["saga"],
            f"{'' if group['op'] == 'do' else group['op'] + ' '}{group['step']}",
            local_time(oldest) if (oldest := parse_timestamp(group["oldest"])) else "",
            group["error"],
            join_names(group["ids"], 5),
            group["command"],
        ]
        for group in report.parked
    ]
    left_out = f"… {report.parked_left_out}" if report.parked_left_out else ""
    return Section("Parked now", header, rows, left_out or ("" if rows else "nothing needs an operator"))


def _unserved(report: PeriodReport) -> Section:
    rows = [
        [
            view.id,
            local_time(ended) if (ended := parse_timestamp(view.ended_at)) else "",
            (view.redelivery and view.redelivery.ended) or "",
            saga_command("show", view.id),
        ]
        for view in report.unserved
    ]
    return Section("Events not served", ("saga", "ended", "why", "command"), rows)


def _residue(report: PeriodReport) -> Section:
    header = ("saga", "ended", "step", "effect", "system", "key", "command")
    rows = [
        [
            view.id,
            local_time(ended) if (ended := parse_timestamp(view.ended_at)) else "",
            effect.step,
            effect.kind.replace("_", " "),
            effect.system or "",
            effect.key or "",
            saga_command("show", view.id),
        ]
        for view in report.residue
        for effect in view.residue
    ]
    shown, total = len(report.residue), report.total("RESIDUE")
    note = f"… the newest {shown:,} of {total:,}; use --limit N for more" if total > shown else ""
    return Section("Residue", header, rows, note if rows else "none")


def _length(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    end = datetime(2000, 1, 1)
    return format_duration(end, end - timedelta(seconds=seconds))
