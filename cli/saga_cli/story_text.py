"""A story for people: who, what, where it stands, what went wrong, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from saga_cli.story_notifications import notification_lines
from saga_cli.story_steps import step_lines
from saga_cli.story_words import Line, Story, clock, length, listed, moment, plain, reason_text, rich_line, short
from sagas.blocked import blocked_steps

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

_OPERATIONS: Mapping[str, str] = {"do": "the step itself", "undo": "its compensation", "confirm": "its confirm"}
_RESIDUE = {"effect_stays": "its effect stays", "effect_missing": "its effect is missing"}


def print_story(story: Story) -> None:
    """Print a `saga show` document for a person; coloured on a terminal only."""
    lines = story_lines(story, now=datetime.now(UTC))
    if sys.stdout.isatty():
        from saga_cli.output import console

        out = console()
        for line in lines:
            out.print(rich_line(line), soft_wrap=True)
        return
    print("\n".join(plain(line) for line in lines), flush=True)


def story_lines(story: Story, *, now: datetime) -> list[Line]:
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
        lines.append([(f"{_reason_word(story, reason)}{where}: ", "dim"), (reason_text(story), "")])
        details = {name: value for name, value in (reason.get("details") or {}).items() if value is not None}
        if details:
            lines.append([("  " + ", ".join(f"{name}={short(value)}" for name, value in details.items()), "dim")])
    lines.append([(_times(story, now), "dim")])
    if story.get("labels"):
        lines.append([(" ".join(f"{name}={value}" for name, value in story["labels"].items()), "dim")])
    if story.get("cancel_requested") and state in ("RUNNING", "COMMITTED"):
        lines.append([("a cancel was asked for", "yellow")])
    if story.get("overdue"):
        lines.append([("overdue: it runs longer than its warn_after", "yellow")])
    if story.get("incomplete"):
        lines.append([(f"not the whole story: {story['incomplete']}", "yellow")])
    for why in story.get("stuck") or ():
        if why not in (story.get("incomplete") or ""):
            lines.append([(f"stuck: {why}", "yellow")])
    if state == "TERMINATED":
        lines.append([("it was ended by force: nothing was undone, and nobody will undo it", "red")])
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
        since = moment(one["since"])
        for_whom = "a nested saga" if one["step"] in nested else "a person"
        lines += [[]] if lines else []
        lines.append([("⏸ ", "red"), (one["step"], "bold red"), (f" waits for {for_whom}", "bold red")])
        lines.append([("  stuck    ", "dim"), (_OPERATIONS.get(one["op"]) or one["op"], "")])
        lines.append([("  why      ", "dim"), (one["why"], "")])
        if since is not None:
            lines.append([("  since    ", "dim"), (f"{clock(since)}, {length(now, since)} ago", "")])
    if not lines:
        return []
    undone, open_ = _undone_and_open(story)
    if story.get("phase") == "backward":
        lines.append([("  undone   ", "dim"), (listed(undone), "")])
        lines.append([("  remains  ", "dim"), (listed(open_), "")])
    else:
        done = [step["id"] for step in story["steps"] if step["state"] in ("DONE", "CONFIRMED", "SKIPPED")]
        rest = [step["id"] for step in story["steps"] if step["state"] == "PENDING"]
        lines.append([("  done     ", "dim"), (listed(done), "")])
        lines.append([("  remains  ", "dim"), (listed(rest), "")])
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
    return [[("not done, and the saga went on without: ", "yellow"), (listed(names), "")]] if names else []


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
        lines.append([("output  ", "dim"), (short(story["output"], 300), "")])
    if story.get("web_ui"):
        lines.append([("        " if lines else "", ""), (story["web_ui"], "dim")])
    return lines
