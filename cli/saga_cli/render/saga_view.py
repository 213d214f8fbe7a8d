"""The view of a saga for people: who, what, where it stands, what went wrong, and what to do next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from saga_cli.output import echo, to_json
from saga_cli.render.revealed_values import value_lines
from sagas.presentation.access_lines import access_lines, told_once
from sagas.presentation.html_page import html_page
from sagas.presentation.parked_outputs import output_lines
from sagas.presentation.parked_rows import row_lines, rows_left_to, rows_table
from sagas.presentation.remaining_steps import done_steps, undone_steps
from sagas.presentation.step_text import (
    MAX_INLINE,
    failed_calls,
    forward_text,
    is_held_back,
    is_unreached,
    rows_to_show,
    undo_span,
)
from sagas.presentation.styled_text import (
    GIVEN_BY_THE_RUN,
    MAX_WHO,
    Line,
    Span,
    error_text,
    format_duration,
    list_steps,
    local_time,
    parse_timestamp,
    reason_text,
    to_html,
    to_line,
    to_plain,
    to_rich,
)
from sagas.presentation.unproven_effects import unproven_lines
from sagas.presentation.web_ui_text import residue_text, step_symbol
from sagas.protocol.payloads import REFUSED_TYPE
from sagas.protocol.saga_view import NotificationView, ParkedView, ReasonView, SagaView, StepView
from sagas.protocol.size_limits import measure
from sagas.text.shell import saga_command
from sagas.text.shortening import counted, shorten_middle

STATE_STYLES = {
    "COMPLETED": "bold green",
    "COMPENSATED": "bold yellow",
    "COMPENSATING": "bold yellow",
    "PARKED": "bold red",
    "RESIDUE": "bold red",
    "FAILED": "bold red",
    "TERMINATED": "bold red",
    "RUNNING": "bold cyan",
    "COMMITTED": "bold cyan",
}

_OPERATION_NAMES: Mapping[str, str] = {"do": "the step itself", "undo": "its undo", "confirm": "its confirm"}


def print_view(view: SagaView, *, values: bool = False) -> None:
    """Print the view as text; coloured on a terminal only. ``values``: with those of the saga, as the view has them."""
    lines = view_lines(view, now=datetime.now(UTC))
    if values:
        lines += [[], *value_lines(view)]
    if sys.stdout.isatty():
        from saga_cli.output import make_console

        out = make_console()
        for line in lines:
            out.print(to_rich(line), soft_wrap=True)
        return
    echo(*map(to_plain, lines))


def view_page(view: SagaView) -> str:
    """The view as one HTML page that needs nothing but itself: what :func:`print_view` prints, and the whole JSON."""
    lines = "\n".join(map(to_html, view_lines(view, now=datetime.now(UTC))))
    document = escape(to_json(view.to_json(), indent=2))
    body = f"<pre>{lines}</pre>\n{rows_table(view)}<details><summary>JSON</summary><pre>{document}</pre></details>"
    return html_page(f"{view.id}: {view.saga} {view.state}", body)


_BEGINNING = 80
"""Characters of a statement that a message quotes in any case."""


def view_lines(view: SagaView, *, now: datetime) -> list[Line]:
    """The whole view. ``now``: ages are counted to it."""
    view = told_once(view)
    blocks = [
        _header(view, now),
        step_lines(view, now),
        _nested(view),
        _parked(view, now),
        _residue(view),
        _not_done(view),
        _operator(view),
        access_lines(view),
        notification_lines(view, now),
        _footer(view),
    ]
    lines: list[Line] = []
    for block in blocks:
        if block:
            lines += ([[]] if lines else []) + block
    return lines


def _detail_words(details: Mapping[str, Any]) -> Iterator[str]:
    """The details of a reason for people: those of the engine in words, those of a participant by name."""
    others = dict(details)
    if others.pop("cannot_heal", None) is True:
        yield "a retry would fail in the same way"
    if others.keys() == {"rows", "expected"}:
        yield f"the statement had {counted(others.pop('rows'), 'row')} instead of {others.pop('expected')}"
    if names := _check_names(others.get("checks")):
        others.pop("checks")
        yield f"failed checks: {list_steps(names)}"
    if isinstance(report := others.pop("report", None), str):
        yield f"report: {report}"  # to be opened, so not shortened
    yield from (f"{name}={to_line(value)}" for name, value in others.items())


def _check_names(checks: Any) -> list[str]:
    """The names of the failed checks of an audit; their messages are in the reason."""
    are_named = isinstance(checks, list) and all(isinstance(check, dict) and "name" in check for check in checks)
    return [str(check["name"]) for check in checks] if are_named else []


def _header(view: SagaView, now: datetime) -> list[Line]:
    state = view.state
    lines: list[Line] = [[(view.id, "bold"), (f"  {view.saga}  ", ""), (state, STATE_STYLES.get(state, ""))]]
    reason = view.reason
    if reason:
        where = f" at {reason.step}" if reason.step else ""
        lines.append([(f"{_reason_kind(reason)}{where}: ", "dim"), (reason_text(view), "")])
        message = reason_text(view)
        details = {
            name: value
            for name, value in reason.details.items()
            if value is not None and str(value)[: _BEGINNING if name == "statement" else None] not in message
        }
        if details:
            lines.append([("  " + ", ".join(_detail_words(details)), "dim")])
    lines.append([(_times(view, now), "dim")])
    if view.labels:
        lines.append([(" ".join(f"{name}={value}" for name, value in view.labels.items()), "dim")])
    if view.cancel_requested and state in ("RUNNING", "COMMITTED"):
        lines.append([("cancel requested", "yellow")])
    for savepoint in view.savepoints or ():
        where = f"the savepoint {savepoint.step}"
        if savepoint.undoing is not None:
            run = f"run {savepoint.runs + 1} of {savepoint.attempts}"
            lines.append([(f"undone up to {where}, then what follows it runs again ({run})", "yellow")])
        elif savepoint.runs > 1:
            lines.append([(f"run {savepoint.runs} of {savepoint.attempts} after {where}", "yellow")])
    if view.paused and view.pause_text:
        held = f"; held back: {list_steps(view.paused.held)}" if view.paused.held else ""
        lines.append([(view.pause_text + held, "yellow")])
        lines.append([(f"{view.resume_command}    lets it go on", "dim")])
    if view.lock_wait:
        lines.append([(view.lock_wait, "yellow")])
    if view.overdue:
        runs = "runs" if view.ended_at is None else "ran"
        lines.append([(f"overdue: it {runs} longer than its warn_after", "yellow")])
    if view.redelivery and not (view.redelivery.unserved and view.stuck):
        lines.append([(view.redelivery.text, "yellow")])
        if view.redelivery.is_due:
            lines.append([(f"{saga_command('cancel', view.id)}    ends that", "dim")])
    if view.source == "ledger":
        lines.append([("from the ledger: Temporal has no run of this saga", "yellow")])
    if view.verified is False:
        lines.append([("not verified: no key of the project is here", "yellow")])
    if view.incomplete:
        lines.append([(f"incomplete: {view.incomplete}", "yellow")])
        from saga_workers.temporal.worker_deployments import worker_help

        help = worker_help(view.incomplete)
        if help is not None and help not in view.incomplete:
            lines.append([(help, "dim")])
    if view.stuck:
        from saga_workers.views.reported_reasons import unreported_reasons

        lines += [[(f"stuck: {why}", "yellow")] for why in unreported_reasons(view)]
    if state == "TERMINATED" and view.phase != "backward":
        lines.append([("terminated: nothing was undone, and nothing will be by itself", "red")])
    return lines


def _reason_kind(reason: ReasonView) -> str:
    return "refused" if reason.type == REFUSED_TYPE else reason.title


def _times(view: SagaView, now: datetime) -> str:
    started, ended, until = map(parse_timestamp, (view.started_at, view.ended_at, view.ran_until))
    parts = []
    if started is not None:
        parts.append(f"started {local_time(started)}")
        parts.append(
            f"took {format_duration(until, started)}" if until else f"running for {format_duration(now, started)}"
        )
        if ended is not None and until != ended:
            parts.append(f"undone {local_time(ended)}")
    if (committed := parse_timestamp(view.committed_at)) is not None and not ended:
        parts.append(f"committed {local_time(committed)}")
    if (deadline := parse_timestamp(view.deadline_at)) is not None and not ended:
        parts.append(f"deadline {local_time(deadline)}")
    if (view.generation or 1) > 1:
        parts.append(f"generation {view.generation}")
    if view.parent:
        parts.append(f"part of {view.parent}")
    if view.can_undo:
        parts.append("can be undone")
    return " · ".join(parts)


def _nested(view: SagaView) -> list[Line]:
    return [[("  nested saga ", "dim"), (child.id, ""), (f"  {child.state}", "")] for child in view.children]


def _parked(view: SagaView, now: datetime) -> list[Line]:
    lines: list[Line] = []
    nested = view.blocked_steps
    for operation in view.parked:
        since = parse_timestamp(operation.since)
        for_whom = "a nested saga" if operation.step in nested else "an operator"
        lines += [[]] if lines else []
        lines.append([("⏸ ", "red"), (operation.step, "bold red"), (f" waits for {for_whom}", "bold red")])
        lines.append([("  stuck    ", "dim"), (_OPERATION_NAMES.get(operation.op, operation.op), "")])
        lines.append([("  why      ", "dim"), (operation.why, "")])
        if (blocking := _blocking_child(view, operation)) is not None:
            lines.append([("  details  ", "dim"), (saga_command("show", blocking), "cyan")])
        lines += row_lines(operation) + output_lines(operation)
        if since is not None:
            lines.append([("  since    ", "dim"), (f"{local_time(since)}, {format_duration(now, since)} ago", "")])
        probed = parse_timestamp(operation.next_probe_at)
        if probed is not None:
            when = f"in {format_duration(probed, now)}" if probed > now else "now"
            lines.append([("  probe    ", "dim"), (f"asked again {when}; a clear answer ends the wait", "")])
    if not lines:
        return []
    title, finished, remaining = (
        ("undone   ", *undone_steps(view)) if view.phase == "backward" else ("done     ", *done_steps(view))
    )
    lines.append([(f"  {title}", "dim"), (list_steps(finished), "")])
    lines.append([("  remains  ", "dim"), (list_steps(remaining), "")])
    if view.source == "ledger":
        if view.stuck:  # the command that continues it is there
            return lines
        return [*lines, [("  Temporal no longer has the run, so its effects can only be undone by hand", "yellow")]]
    if any("--definition" in command for operation in view.parked for command in operation.commands):
        note = "the run keeps its definition until a retry brings the corrected file with --definition"
        lines.append([("  note     ", "dim"), (note, "yellow")])
    lines.append([("  decide with one of", "dim")])
    lines += [[("    " + command, "cyan")] for operation in view.parked for command in operation.commands]
    return lines


def _blocking_child(view: SagaView, operation: ParkedView) -> str | None:
    """The nested saga whose parked operation this is: it shows its arguments, rows and repairs itself."""
    waits = [wait for child in view.children if child.step == operation.step for wait in child.waits or ()]
    return next((wait.id for wait in waits if wait.commands == operation.commands), None)


def _residue(view: SagaView) -> list[Line]:
    lines: list[Line] = []
    for effect in view.residue:
        where = f" in {effect.system}" if effect.system else ""
        key = f" (key {effect.key})" if effect.key else ""
        what = residue_text(view, effect)
        step = f"{effect.saga} {effect.step}" if effect.saga else effect.step
        lines.append([("! ", "bold red"), (step, "bold red"), (f": {what}{where}{key}", "")])
        if effect.command:
            lines.append([(f"    {GIVEN_BY_THE_RUN}", "dim")])
            lines += [[("    " + line, "cyan")] for line in effect.command.splitlines()]
    return lines + [[("? ", "bold yellow"), (line, "")] for line in unproven_lines(view)]


def _not_done(view: SagaView) -> list[Line]:
    if not view.not_done:
        return []
    return [[("not done, the saga continued without: ", "yellow"), (list_steps(view.not_done), "")]]


def _operator(view: SagaView) -> list[Line]:
    lines: list[Line] = []
    for decision in view.operator:
        decided_at = parse_timestamp(decision.at)
        evidence = f"; evidence: {decision.evidence}" if decision.evidence else ""
        given = "" if decision.arguments is None else f" with {shorten_middle(to_json(decision.arguments), 160)}"
        given += f" with the definition {decision.definition[:19]}" if decision.definition else ""
        given += f", which closes {', '.join(decision.closed)}" if decision.closed else ""
        because = f", because {decision.reason or '…'}" if decision.step or decision.reason else ""
        lines.append(
            [
                (f"{local_time(decided_at)}  " if decided_at else "", "dim"),
                (f"{shorten_middle(decision.who, MAX_WHO)}: ", "bold"),
                (f"{decision.decision} {decision.step}".rstrip() + given + because + evidence, ""),
            ]
        )
        if decision.error:
            lines.append([(f"  it was parked: {shorten_middle(decision.error, _MAX_ERROR)}", "dim")])
    return [[("decisions", "dim")], *[[("  ", ""), *line] for line in lines]] if lines else []


def _footer(view: SagaView) -> list[Line]:
    lines: list[Line] = []
    if view.output is not None:
        lines.append([("output  ", "dim"), (to_line(view.output, 300), "")])
    if view.web_ui:
        lines.append([("        " if lines else "", ""), (view.web_ui, "dim")])
    return lines


# The steps: one row each, what happened forward and what backward.
_MARK_STYLES = {"✔": "green", "✖": "red", "?": "red", "⏸": "red", "↩": "yellow", "▶": "cyan"}
_MAX_ERROR = 1500


def step_lines(view: SagaView, now: datetime) -> list[Line]:
    """All rows, in columns."""
    rows: list[list[Span]] = []
    notes: dict[int, list[Span]] = {}
    errors: list[list[Line]] = []
    shown = "\n".join([*(operation.why for operation in view.parked), (view.reason and view.reason.message) or ""])
    with_residue = {child.step for child in view.children if child.state == "RESIDUE"}
    for row in rows_to_show(view.steps):
        errors.append([])
        if isinstance(row, str):
            notes[len(rows)] = [(row, "dim")]
            rows.append([])
            continue
        rows.append(_step_row(row, now))
        if is_held_back(view, row):
            rows[-1][0], rows[-1][3] = ("⏸", "yellow"), ("held", "yellow")
        if is_unreached(view, row):
            rows[-1][3] = ("not reached", "dim")
        if row.compensation and (heirs := rows_left_to(view, row.id)):
            rows[-1][-1] = (f"↩ rows left to the undo of {', '.join(heirs)} ({row.compensation.uses})", "yellow")
        if row.id in with_residue and rows[-1][-1][0]:
            rows[-1][-1] = ("↩ ended RESIDUE (saga)", "red")
        texts = [text for text in _errors(row) if len(text) > MAX_INLINE and text not in shown]
        errors[-1] = [
            [("      ", ""), (shorten_middle(" ".join(text.split()), _MAX_ERROR), "yellow")]
            for text in dict.fromkeys(texts)
        ] + [[("      ", ""), (text, "dim")] for text in _calls(row)]
    lines = [line for row, below in zip(_align(rows, notes), errors, strict=True) for line in (row, *below)]
    for what, count in (view.steps_omitted or {}).items():
        lines.append([(f"    … {what}: {count} more, omitted", "dim")])
    if unkept := [_unkept_text(row) for row in view.steps if row.result_kept is False]:
        lines.append(
            [("  not kept, and no expression can read it: the result of ", "yellow"), (list_steps(unkept), "")]
        )
    return lines


def _unkept_text(step: StepView) -> str:
    placeholder = step.result if isinstance(step.result, Mapping) else {}
    return f"{step.id} ({measure(placeholder)})" if "bytes" in placeholder else step.id


def _step_row(step: StepView, now: datetime) -> list[Span]:
    mark = step_symbol(step)
    style = "dim" if step.state in ("PENDING", "SKIPPED") else ""
    title = "" if step.name in (step.id, step.step) else step.name
    return [
        (mark, _MARK_STYLES.get(mark, "dim")),
        (step.id, style or "bold"),
        (title or step.uses, style),
        (forward_text(step, now), style),
        undo_span(step),
    ]


def _errors(step: StepView) -> Iterable[str]:
    """The errors that the row of a step begins to tell, in full."""
    if step.error and step.state not in ("DONE", "CONFIRMED", "CONFIRMING"):
        yield error_text(step.error)
    for operation in (step.compensation, step.confirmation):
        if operation and operation.error and operation.state == "RUNNING":
            yield error_text(operation.error)


_MAX_ARGUMENTS = 400


def _calls(step: StepView) -> Iterable[str]:
    """With what the operations were called that have failed so far."""
    for op, arguments in failed_calls(step):
        title = "" if op == "do" else f"its {op} "
        yield f"{title}called with {shorten_middle(to_json(arguments), _MAX_ARGUMENTS)}"


def _align(rows: Sequence[Line], notes: Mapping[int, Line]) -> list[Line]:
    widest = max(40, shutil.get_terminal_size((140, 24)).columns // 3)
    columns = max((len(row) for row in rows), default=0)
    widths = [max((min(len(row[index][0]), widest) for row in rows if row), default=0) for index in range(columns)]
    lines: list[Line] = []
    for number, row in enumerate(rows):
        if not row:
            lines.append([("    ", ""), *notes[number]])
            continue
        line: Line = [("  ", "")]
        for (text, style), width in zip(row, widths, strict=True):
            line.append((text.ljust(width) + "  ", style))
        lines.append(line)
    return lines


_NOTIFICATION_STYLES = {"DELIVERED": "green", "PENDING": "cyan", "EXHAUSTED": "bold red", "STOPPED": "red"}


def notification_lines(view: SagaView, now: datetime) -> list[Line]:
    """A line for each, and what to do about one that was given up."""
    lines: list[Line] = []
    for row in view.notifications:
        lines.append([("  ", ""), *notification_line(row, now)])
        lines += [[("    " + command, "cyan")] for command in row.commands(view.id)]
    return [[("notifications", "dim")], *lines] if lines else []


def notification_line(row: NotificationView, now: datetime) -> Line:
    """One notification: its name, what it uses, how it stands, and why it has not arrived."""
    state = row.state or "deleted by Temporal"
    line: Line = [(row.id, "bold"), (f"  {row.uses}  ", ""), (state, _NOTIFICATION_STYLES.get(state, "dim"))]
    if row.attempts:
        line.append((f"  {row.attempts} attempt{'' if row.attempts == 1 else 's'}", "dim"))
    ended = parse_timestamp(row.ended_at)
    if ended is not None:
        line.append((f"  {local_time(ended)}", "dim"))
    if row.error:
        line.append((f"  {row.error.message}", "yellow"))
    if row.closed:
        line.append((f"  closed by {row.closed}", "dim"))
    following = parse_timestamp(row.next_attempt_at)
    if following is not None and following > now:
        line.append((f"  next attempt in {format_duration(following, now)}", "dim"))
    return line
