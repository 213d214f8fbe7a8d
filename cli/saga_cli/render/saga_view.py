"""A story for people: who, what, where it stands, what went wrong, and what to do next."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from saga_cli.render.text import (
    Line,
    Span,
    Story,
    error_text,
    format_duration,
    join_names,
    local_time,
    parse_timestamp,
    progress_text,
    reason_text,
    shorten,
    to_plain,
    to_rich,
)
from sagas.machine.parked import blocked_steps
from sagas.presentation.web_ui_text import STATE_SYMBOLS

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

_OPERATION_NAMES: Mapping[str, str] = {"do": "the step itself", "undo": "its compensation", "confirm": "its confirm"}
_RESIDUE_TEXTS = {"effect_stays": "its effect stays", "effect_missing": "its effect is missing"}


def print_view(story: Story) -> None:
    """Print a `saga show` document for a person; coloured on a terminal only."""
    lines = view_lines(story, now=datetime.now(UTC))
    if sys.stdout.isatty():
        from saga_cli.output import make_console

        out = make_console()
        for line in lines:
            out.print(to_rich(line), soft_wrap=True)
        return
    print("\n".join(to_plain(line) for line in lines), flush=True)


def view_lines(story: Story, *, now: datetime) -> list[Line]:
    """The whole story. ``now`` is the moment of the telling: ages are counted to it."""
    blocks = [
        _header(story, now),
        step_lines(story, now),
        _nested(story),
        _parked(story, now),
        _residue(story),
        _not_done(story),
        _operator(story),
        notification_lines(story, now),
        _footer(story),
    ]
    lines: list[Line] = []
    for block in blocks:
        if block:
            lines += ([[]] if lines else []) + block
    return lines


# --- the header ------------------------------------------------------------------------------------------------


def _header(story: Story, now: datetime) -> list[Line]:
    state = story["state"]
    lines: list[Line] = [[(story["id"], "bold"), (f"  {story['saga']}  ", ""), (state, STATE_STYLES.get(state, ""))]]
    reason = story.get("reason")
    if reason:
        where = f" at {reason['step']}" if reason.get("step") else ""
        lines.append([(f"{_reason_kind(story, reason)}{where}: ", "dim"), (reason_text(story), "")])
        details = {name: value for name, value in (reason.get("details") or {}).items() if value is not None}
        if details:
            lines.append([("  " + ", ".join(f"{name}={shorten(value)}" for name, value in details.items()), "dim")])
    lines.append([(_times(story, now), "dim")])
    if story.get("labels"):
        lines.append([(" ".join(f"{name}={value}" for name, value in story["labels"].items()), "dim")])
    if story.get("cancel_requested") and state in ("RUNNING", "COMMITTED"):
        lines.append([("cancel requested", "yellow")])
    if story.get("overdue"):
        lines.append([("overdue: it runs longer than its warn_after", "yellow")])
    if story.get("incomplete"):
        lines.append([(f"incomplete: {story['incomplete']}", "yellow")])
    for why in story.get("stuck") or ():
        if why not in (story.get("incomplete") or ""):
            lines.append([(f"stuck: {why}", "yellow")])
    if state == "TERMINATED":
        lines.append([("terminated: nothing was undone, and nothing will be", "red")])
    return lines


def _reason_kind(story: Story, reason: Story) -> str:
    return "refused" if reason.get("type") == "SagaRefused" else str(reason["kind"])


def _times(story: Story, now: datetime) -> str:
    started, ended = parse_timestamp(story.get("started_at")), parse_timestamp(story.get("ended_at"))
    parts = []
    if started is not None:
        parts.append(f"started {local_time(started)}")
        parts.append(
            f"took {format_duration(ended, started)}" if ended else f"running for {format_duration(now, started)}"
        )
    if (committed := parse_timestamp(story.get("committed_at"))) is not None and not ended:
        parts.append(f"committed {local_time(committed)}")
    if (deadline := parse_timestamp(story.get("deadline_at"))) is not None and not ended:
        parts.append(f"deadline {local_time(deadline)}")
    if (story.get("generation") or 1) > 1:
        parts.append(f"generation {story['generation']}")
    if story.get("parent"):
        parts.append(f"part of {story['parent']}")
    if story.get("can_undo"):
        parts.append("can be undone")
    return " · ".join(parts)


# --- what needs a person, and what a person did ----------------------------------------------------------------


def _nested(story: Story) -> list[Line]:
    children = story.get("children") or ()
    return [
        [("  nested saga ", "dim"), (str(one.get("id")), ""), (f"  {one.get('state') or ''}", "")] for one in children
    ]


def _parked(story: Story, now: datetime) -> list[Line]:
    lines: list[Line] = []
    nested = blocked_steps(story)
    for one in story.get("parked") or ():
        since = parse_timestamp(one["since"])
        for_whom = "a nested saga" if one["step"] in nested else "an operator"
        lines += [[]] if lines else []
        lines.append([("⏸ ", "red"), (one["step"], "bold red"), (f" waits for {for_whom}", "bold red")])
        lines.append([("  stuck    ", "dim"), (_OPERATION_NAMES.get(one["op"]) or one["op"], "")])
        lines.append([("  why      ", "dim"), (one["why"], "")])
        if since is not None:
            lines.append([("  since    ", "dim"), (f"{local_time(since)}, {format_duration(now, since)} ago", "")])
    if not lines:
        return []
    undone, open_ = _split_by_undo(story)
    if story.get("phase") == "backward":
        lines.append([("  undone   ", "dim"), (join_names(undone), "")])
        lines.append([("  remains  ", "dim"), (join_names(open_), "")])
    else:
        done = [step["id"] for step in story["steps"] if step["state"] in ("DONE", "CONFIRMED", "SKIPPED")]
        rest = [step["id"] for step in story["steps"] if step["state"] == "PENDING"]
        lines.append([("  done     ", "dim"), (join_names(done), "")])
        lines.append([("  remains  ", "dim"), (join_names(rest), "")])
    lines.append([("  decide with one of", "dim")])
    lines += [[("    " + command, "cyan")] for one in story["parked"] for command in one.get("commands") or ()]
    return lines


def _split_by_undo(story: Story) -> tuple[list[str], list[str]]:
    undone, open_ = [], []
    for step in story.get("steps") or ():
        state = (step.get("compensation") or {}).get("state")
        if state in ("DONE", "NOTHING_TO_UNDO"):
            undone.append(step["id"])
        elif state in ("PENDING", "RUNNING", "PARKED", "UNKNOWN", "FAILED") and step["state"] not in (
            "PENDING",
            "REJECTED",
            "FAILED",
            "SKIPPED",
        ):
            open_.append(step["id"])
    return undone, open_


def _residue(story: Story) -> list[Line]:
    lines: list[Line] = []
    for one in story.get("residue") or ():
        where = f" in {one['system']}" if one.get("system") else ""
        key = f" (key {one['key']})" if one.get("key") else ""
        what = _RESIDUE_TEXTS.get(one["kind"], one["kind"])
        lines.append([("! ", "bold red"), (one["step"], "bold red"), (f": {what}{where}{key}", "")])
        if one.get("command"):
            lines.append([("    " + one["command"], "cyan")])
    return lines


def _not_done(story: Story) -> list[Line]:
    names = [one if isinstance(one, str) else str(one.get("step") or one) for one in story.get("not_done") or ()]
    return [[("not done, the saga continued without: ", "yellow"), (join_names(names), "")]] if names else []


def _operator(story: Story) -> list[Line]:
    lines: list[Line] = []
    for one in story.get("operator") or ():
        at = parse_timestamp(one.get("at"))
        evidence = f"; evidence: {one['evidence']}" if one.get("evidence") else ""
        what = f"{one.get('decision')} {one.get('step') or ''}".strip()
        lines.append(
            [
                (f"{local_time(at)}  " if at else "", "dim"),
                (f"{one.get('who')}: ", "bold"),
                (f"{what}, because {one.get('reason') or '…'}{evidence}", ""),
            ]
        )
    return [[("decisions", "dim")], *[[("  ", ""), *line] for line in lines]] if lines else []


def _footer(story: Story) -> list[Line]:
    lines: list[Line] = []
    if story.get("output") is not None:
        lines.append([("output  ", "dim"), (shorten(story["output"], 300), "")])
    if story.get("web_ui"):
        lines.append([("        " if lines else "", ""), (story["web_ui"], "dim")])
    return lines


# The steps of a story: one row each, what happened forward and what backward.

_MARK_STYLES = {"✔": "green", "✖": "red", "?": "red", "⏸": "red", "↩": "yellow", "▶": "cyan"}
_UNDO_TEXTS = {
    "PENDING": "",
    "RUNNING": "being undone",
    "DONE": "undone",
    "NOTHING_TO_UNDO": "nothing to undo",
    "REJECTED": "undo refused",
    "FAILED": "undo failed",
    "UNKNOWN": "undo: outcome unknown",
    "PARKED": "undo PARKED",
    "SKIPPED": "undo skipped",
}
_MAX_ITEMS = 12


def step_lines(story: Story, now: datetime) -> list[Line]:
    """All rows, in columns."""
    rows: list[list[Span]] = []
    notes: dict[int, list[Span]] = {}
    for row in _rows_to_show(story.get("steps") or ()):
        if isinstance(row, str):
            notes[len(rows)] = [(row, "dim")]
            rows.append([])
            continue
        rows.append(_step_row(row, now))
    lines = _align(rows, notes)
    for what, count in (story.get("steps_omitted") or {}).items():
        lines.append([(f"    … {what}: {count} more, omitted", "dim")])
    return lines


def _rows_to_show(steps: Iterable[Story]) -> Iterable[Story | str]:
    """All steps; of a long for_each those with something to tell, and how many others there are."""
    groups: dict[str, list[Story]] = {}
    for step in steps:
        groups.setdefault(step["step"], []).append(step)
    for members in groups.values():
        if len(members) <= _MAX_ITEMS:
            yield from members
            continue
        usual, count = Counter(_state_pair(one) for one in members).most_common(1)[0]
        telling = [one for one in members if _state_pair(one) != usual]
        yield from telling[: 2 * _MAX_ITEMS]
        if len(telling) > 2 * _MAX_ITEMS:
            yield f"{members[0]['step']}: {len(telling) - 2 * _MAX_ITEMS} more with other states"
        words = usual[0].lower() + (f", {_UNDO_TEXTS.get(usual[1], '')}" if _UNDO_TEXTS.get(usual[1]) else "")
        yield f"{members[0]['step']}: {count} of {len(members)} items {words}"


def _state_pair(step: Story) -> tuple[str, str]:
    return step["state"], (step.get("compensation") or {}).get("state") or ""


def _step_row(step: Story, now: datetime) -> list[Span]:
    mark = STATE_SYMBOLS.get(step["state"], " ")
    style = "dim" if step["state"] in ("PENDING", "SKIPPED") else ""
    name = step.get("name") or ""
    title = "" if name in (step["id"], step["step"], "") else name
    return [
        (mark, _MARK_STYLES.get(mark, "dim")),
        (step["id"], style or "bold"),
        (title or step["uses"], style),
        (_forward_text(step, now), style),
        _undo_span(step),
    ]


def _forward_text(step: Story, now: datetime) -> str:
    words = [_forward_state(step)]
    if (step.get("attempts") or 0) > 1:
        words.append(f"{step['attempts']} attempts")
    if (step.get("generation") or 1) > 1:
        words.append(f"generation {step['generation']}")
    started, ended = parse_timestamp(step.get("started_at")), parse_timestamp(step.get("ended_at"))
    if started is not None and (ended is not None or step["state"] == "RUNNING"):
        words.append(format_duration(ended or now, started))
    if step.get("progress"):
        words.append(shorten(progress_text(step["progress"]), 120))
    error = step.get("error")
    if error and step["state"] not in ("DONE", "CONFIRMED", "CONFIRMING"):
        words.append(shorten(error_text(error), 80))
    return ", ".join(words)


def _forward_state(step: Story) -> str:
    """What happened forward; what happened backward stands in the next column."""
    if step["state"] in ("COMPENSATING", "COMPENSATED", "NOTHING_TO_UNDO", "PARKED") and step.get("outcome"):
        return step["outcome"] if step["state"] != "PARKED" else f"{step['outcome']}, parked"
    return step["state"].lower()


def _undo_span(step: Story) -> Span:
    undo, confirm = step.get("compensation"), step.get("confirmation")
    if confirm and confirm["state"] not in ("PENDING", "DONE"):
        return (f"✔ confirm {confirm['uses']}: {confirm['state'].lower()}{_attempts_text(confirm)}", "yellow")
    if not undo:
        return ("", "")
    words = _UNDO_TEXTS.get(undo["state"], undo["state"].lower())
    if not words:
        return ("", "")
    style = "red" if undo["state"] in ("PARKED", "REJECTED", "FAILED", "UNKNOWN") else "yellow"
    return (f"↩ {words} ({undo['uses']}{_attempts_text(undo)})", style)


def _attempts_text(operation: Story) -> str:
    times = f", {operation['attempts']} attempts" if (operation.get("attempts") or 0) > 1 else ""
    error = operation.get("error")
    if operation["state"] != "RUNNING" or not error:
        return times
    return f"{times}: {shorten(error_text(error), 80)}"


def _align(rows: Sequence[Line], notes: Mapping[int, Line]) -> list[Line]:
    widest = max(40, shutil.get_terminal_size((140, 24)).columns // 3)
    columns = max((len(row) for row in rows), default=0)
    widths = [max((min(len(row[at][0]), widest) for row in rows if row), default=0) for at in range(columns)]
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


# The notifications of a story for people.

_NOTIFICATION_STYLES = {"DELIVERED": "green", "PENDING": "cyan", "EXHAUSTED": "bold red", "STOPPED": "red"}


def notification_lines(story: Story, now: datetime) -> list[Line]:
    """A line for each, and what to do about one that was given up."""
    lines: list[Line] = []
    for row in story.get("notifications") or ():
        lines.append([("  ", ""), *notification_line(row, now)])
        if row["state"] in ("EXHAUSTED", "STOPPED"):
            lines.append([(f"    saga notify {story['id']} {row['id']} --again", "cyan")])
    return [[("notifications", "dim")], *lines] if lines else []


def notification_line(row: Story, now: datetime) -> Line:
    """One notification: its name, what it uses, how it stands, and why it has not arrived."""
    state = row["state"] or "deleted by Temporal"
    line: Line = [(row["id"], "bold"), (f"  {row['uses']}  ", ""), (state, _NOTIFICATION_STYLES.get(state, "dim"))]
    attempts = row.get("attempts")
    if attempts:
        line.append((f"  {attempts} attempt{'' if attempts == 1 else 's'}", "dim"))
    ended = parse_timestamp(row.get("ended_at"))
    if ended is not None:
        line.append((f"  {local_time(ended)}", "dim"))
    if row.get("error"):
        line.append((f"  {row['error']['message']}", "yellow"))
    following = parse_timestamp(row.get("next_attempt_at"))
    if following is not None and following > now:
        line.append((f"  next attempt in {format_duration(following, now)}", "dim"))
    return line
