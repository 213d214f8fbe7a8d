"""A story for people: who, what, where it stands, what went wrong, and what to do next."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sagas.details import MARKS

Span = tuple[str, str]
"""A text and its style (rich's words; empty: plain)."""

Line = list[Span]
Story = Mapping[str, Any]

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
_OPERATIONS: Mapping[str, str] = {"do": "the step itself", "undo": "its compensation", "confirm": "its confirm"}
_RESIDUE = {"effect_stays": "its effect stays", "effect_missing": "its effect is missing"}
_MANY_ITEMS = 12


def print_story(story: Story) -> None:
    """Print a `saga show` document for a person; coloured on a terminal only."""
    lines = story_lines(story, now=datetime.now(UTC))
    if sys.stdout.isatty():
        from cli.output import console

        out = console()
        for line in lines:
            out.print(rich_line(line), soft_wrap=True)
        return
    print("\n".join(plain(line) for line in lines), flush=True)


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def rich_line(line: Line) -> Any:
    from rich.text import Text

    return Text.assemble(*line)


def story_lines(story: Story, *, now: datetime) -> list[Line]:
    """The whole story. ``now`` is the moment of the telling: ages are counted to it."""
    blocks = [
        _header(story, now),
        _steps(story, now),
        _nested(story),
        _parked(story, now),
        _residue(story),
        _not_done(story),
        _operator(story),
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
        message = reason.get("message") or "no message"
        lines.append([(f"{_reason_word(story, reason)}{where}: ", "dim"), (message, "")])
        details = {name: value for name, value in (reason.get("details") or {}).items() if value is not None}
        if details:
            lines.append([("  " + ", ".join(f"{name}={_short(value)}" for name, value in details.items()), "dim")])
    lines.append([(_times(story, now), "dim")])
    if story.get("labels"):
        lines.append([(" ".join(f"{name}={value}" for name, value in story["labels"].items()), "dim")])
    if story.get("cancel_requested") and state in ("RUNNING", "COMMITTED"):
        lines.append([("a cancel was asked for", "yellow")])
    if story.get("overdue"):
        lines.append([("overdue: it runs longer than its warn_after", "yellow")])
    if story.get("incomplete"):
        lines.append([(f"not the whole story: {story['incomplete']}", "yellow")])
    if state == "TERMINATED":
        lines.append([("terminated by hand: nothing was undone, and nobody will undo it", "red")])
    return lines


def _reason_word(story: Story, reason: Story) -> str:
    return "refused" if reason.get("type") == "SagaRefused" else str(reason["kind"])


def _times(story: Story, now: datetime) -> str:
    started, ended = moment(story.get("started_at")), moment(story.get("ended_at"))
    parts = []
    if started is not None:
        parts.append(f"started {clock(started)}")
        parts.append(f"took {length(ended, started)}" if ended else f"running for {length(now, started)}")
    if (committed := moment(story.get("committed_at"))) is not None and not ended:
        parts.append(f"committed {clock(committed)}")
    if (deadline := moment(story.get("deadline_at"))) is not None and not ended:
        parts.append(f"deadline {clock(deadline)}")
    if (story.get("generation") or 1) > 1:
        parts.append(f"generation {story['generation']}")
    if story.get("parent"):
        parts.append(f"part of {story['parent']}")
    if story.get("can_undo"):
        parts.append("can be undone")
    return " · ".join(parts)


# --- the steps -------------------------------------------------------------------------------------------------


def _steps(story: Story, now: datetime) -> list[Line]:
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
    error = step.get("error")
    if error and step["state"] not in ("DONE", "CONFIRMED", "CONFIRMING"):
        words.append(_short(error.get("message") or error.get("type") or "no message", 80))
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
    return f", {operation['attempts']} attempts" if (operation.get("attempts") or 0) > 1 else ""


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


# --- what needs a person, and what a person did ----------------------------------------------------------------


def _nested(story: Story) -> list[Line]:
    children = story.get("children") or ()
    return [
        [("  nested saga ", "dim"), (str(one.get("id")), ""), (f"  {one.get('state') or ''}", "")] for one in children
    ]


def _parked(story: Story, now: datetime) -> list[Line]:
    lines: list[Line] = []
    for one in story.get("parked") or ():
        since = moment(one["since"])
        lines += [[]] if lines else []
        lines.append([("⏸ ", "red"), (one["step"], "bold red"), (" waits for a person", "bold red")])
        lines.append([("  stuck    ", "dim"), (_OPERATIONS.get(one["op"]) or one["op"], "")])
        lines.append([("  why      ", "dim"), (one["why"], "")])
        if since is not None:
            lines.append([("  since    ", "dim"), (f"{clock(since)}, {length(now, since)} ago", "")])
    if not lines:
        return []
    undone, open_ = _undone_and_open(story)
    if story.get("phase") == "backward":
        lines.append([("  undone   ", "dim"), (_names(undone), "")])
        lines.append([("  remains  ", "dim"), (_names(open_), "")])
    else:
        done = [step["id"] for step in story["steps"] if step["state"] in ("DONE", "CONFIRMED", "SKIPPED")]
        rest = [step["id"] for step in story["steps"] if step["state"] == "PENDING"]
        lines.append([("  done     ", "dim"), (_names(done), "")])
        lines.append([("  remains  ", "dim"), (_names(rest), "")])
    lines.append([("  decide with one of", "dim")])
    lines += [[("    " + command, "cyan")] for one in story["parked"] for command in one.get("commands") or ()]
    return lines


def _undone_and_open(story: Story) -> tuple[list[str], list[str]]:
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
        what = _RESIDUE.get(one["kind"], one["kind"])
        lines.append([("! ", "bold red"), (one["step"], "bold red"), (f": {what}{where}{key}", "")])
        if one.get("command"):
            lines.append([("    " + one["command"], "cyan")])
    return lines


def _not_done(story: Story) -> list[Line]:
    names = [one if isinstance(one, str) else str(one.get("step") or one) for one in story.get("not_done") or ()]
    return [[("not done, and the saga went on without: ", "yellow"), (_names(names), "")]] if names else []


def _operator(story: Story) -> list[Line]:
    lines: list[Line] = []
    for one in story.get("operator") or ():
        at = moment(one.get("at"))
        evidence = f"; evidence: {one['evidence']}" if one.get("evidence") else ""
        what = f"{one.get('decision')} {one.get('step') or ''}".strip()
        lines.append(
            [
                (f"{clock(at)}  " if at else "", "dim"),
                (f"{one.get('who')}: ", "bold"),
                (f"{what}, because {one.get('reason') or '…'}{evidence}", ""),
            ]
        )
    return [[("decisions", "dim")], *[[("  ", ""), *line] for line in lines]] if lines else []


def _footer(story: Story) -> list[Line]:
    lines: list[Line] = []
    if story.get("output") is not None:
        lines.append([("output  ", "dim"), (_short(story["output"], 300), "")])
    if story.get("web_ui"):
        lines.append([("        " if lines else "", ""), (story["web_ui"], "dim")])
    return lines


# --- words -----------------------------------------------------------------------------------------------------


def _names(names: Sequence[str], most: int = 12) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _short(value: Any, most: int = 60) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def moment(text: Any) -> datetime | None:
    """A point in time of a story."""
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def clock(at: datetime) -> str:
    """In the reader's own time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def length(end: datetime, begin: datetime) -> str:
    """A length of time for people: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 days`."""
    seconds = max(0.0, (end - begin).total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"
