"""The steps of a story: one row each, what happened forward and what backward."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from saga_cli.story_words import Line, Span, Story, error_text, length, moment, progress_text, short
from sagas.details import MARKS

_MARK_STYLES = {"✔": "green", "✖": "red", "?": "red", "⏸": "red", "↩": "yellow", "▶": "cyan"}
_UNDO_WORDS = {
    "PENDING": "",
    "RUNNING": "being undone",
    "DONE": "undone",
    "NOTHING_TO_UNDO": "nothing to undo",
    "REJECTED": "undo refused",
    "FAILED": "undo failed",
    "UNKNOWN": "undo: no answer",
    "PARKED": "undo PARKED",
    "SKIPPED": "undo skipped",
}
_MANY_ITEMS = 12


def step_lines(story: Story, now: datetime) -> list[Line]:
    """All rows, in columns."""
    rows: list[list[Span]] = []
    notes: dict[int, list[Span]] = {}
    for row in _shown(story.get("steps") or ()):
        if isinstance(row, str):
            notes[len(rows)] = [(row, "dim")]
            rows.append([])
            continue
        rows.append(_row(row, now))
    lines = _aligned(rows, notes)
    for what, count in (story.get("steps_omitted") or {}).items():
        lines.append([(f"    … {what}: {count} more, left out of a story this long", "dim")])
    return lines


def _shown(steps: Iterable[Story]) -> Iterable[Story | str]:
    """All steps; of a long for_each those with something to tell, and how many others there are."""
    groups: dict[str, list[Story]] = {}
    for step in steps:
        groups.setdefault(step["step"], []).append(step)
    for members in groups.values():
        if len(members) <= _MANY_ITEMS:
            yield from members
            continue
        usual, count = Counter(_kind(one) for one in members).most_common(1)[0]
        telling = [one for one in members if _kind(one) != usual]
        yield from telling[: 2 * _MANY_ITEMS]
        if len(telling) > 2 * _MANY_ITEMS:
            yield f"{members[0]['step']}: {len(telling) - 2 * _MANY_ITEMS} more like these"
        words = usual[0].lower() + (f", {_UNDO_WORDS.get(usual[1], '')}" if _UNDO_WORDS.get(usual[1]) else "")
        yield f"{members[0]['step']}: {count} of {len(members)} items {words}"


def _kind(step: Story) -> tuple[str, str]:
    return step["state"], (step.get("compensation") or {}).get("state") or ""


def _row(step: Story, now: datetime) -> list[Span]:
    mark = MARKS.get(step["state"], " ")
    style = "dim" if step["state"] in ("PENDING", "SKIPPED") else ""
    name = step.get("name") or ""
    title = "" if name in (step["id"], step["step"], "") else name
    return [
        (mark, _MARK_STYLES.get(mark, "dim")),
        (step["id"], style or "bold"),
        (title or step["uses"], style),
        (_happened(step, now), style),
        _undo(step),
    ]


def _happened(step: Story, now: datetime) -> str:
    words = [_forward_word(step)]
    if (step.get("attempts") or 0) > 1:
        words.append(f"{step['attempts']} attempts")
    if (step.get("generation") or 1) > 1:
        words.append(f"generation {step['generation']}")
    started, ended = moment(step.get("started_at")), moment(step.get("ended_at"))
    if started is not None and (ended is not None or step["state"] == "RUNNING"):
        words.append(length(ended or now, started))
    if step.get("progress"):
        words.append(short(progress_text(step["progress"]), 120))
    error = step.get("error")
    if error and step["state"] not in ("DONE", "CONFIRMED", "CONFIRMING"):
        words.append(short(error_text(error), 80))
    return ", ".join(words)


def _forward_word(step: Story) -> str:
    """What happened forward; what happened backward stands in the next column."""
    if step["state"] in ("COMPENSATING", "COMPENSATED", "NOTHING_TO_UNDO", "PARKED") and step.get("outcome"):
        return step["outcome"] if step["state"] != "PARKED" else f"{step['outcome']}, parked"
    return step["state"].lower()


def _undo(step: Story) -> Span:
    undo, confirm = step.get("compensation"), step.get("confirmation")
    if confirm and confirm["state"] not in ("PENDING", "DONE"):
        return (f"✔ confirm {confirm['uses']}: {confirm['state'].lower()}{_tries(confirm)}", "yellow")
    if not undo:
        return ("", "")
    words = _UNDO_WORDS.get(undo["state"], undo["state"].lower())
    if not words:
        return ("", "")
    style = "red" if undo["state"] in ("PARKED", "REJECTED", "FAILED", "UNKNOWN") else "yellow"
    return (f"↩ {words} ({undo['uses']}{_tries(undo)})", style)


def _tries(operation: Story) -> str:
    times = f", {operation['attempts']} attempts" if (operation.get("attempts") or 0) > 1 else ""
    error = operation.get("error")
    if operation["state"] != "RUNNING" or not error:
        return times
    return f"{times}: {short(error_text(error), 80)}"


def _aligned(rows: Sequence[Line], notes: Mapping[int, Line]) -> list[Line]:
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
