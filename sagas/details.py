"""The Markdown that the Temporal Web UI shows of a running saga: its steps, its state, and what is safe to click."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = {
    "PENDING": "·",
    "RUNNING": "▶",
    "DONE": "✔",
    "CONFIRMING": "▶",
    "CONFIRMED": "✔",
    "SKIPPED": "–",
    "REJECTED": "✖",
    "FAILED": "✖",
    "UNKNOWN": "?",
    "COMPENSATING": "↩",
    "COMPENSATED": "↩",
    "NOTHING_TO_UNDO": "∅",
    "PARKED": "⏸",
}
ROWS = 60


def details_table(story: Mapping[str, Any]) -> str:
    """The whole text. ``story`` is the `saga show` document; long sagas show their first and last steps."""
    lines = [f"**{story['saga']}** is **{story['state']}**" + _because(story.get("reason"))]
    for entry in story.get("parked") or ():
        lines.append(f"\n⏸ **{entry['step']}** ({entry['op']}) waits for a person: {entry['why']}")
        lines.extend(f"- `{command}`" for command in entry.get("commands") or ())
    lines += ["", "| | step | action | state | attempts | undo |", "|---|---|---|---|---|---|"]
    steps = story.get("steps") or []
    shown = steps if len(steps) <= ROWS else [*steps[: ROWS // 2], None, *steps[-ROWS // 2 :]]
    for step in shown:
        lines.append(_row(step) if step is not None else f"| … | {len(steps) - ROWS} more steps | | | | |")
    lines += ["", _safety(story)]
    return "\n".join(lines)


def _row(step: Mapping[str, Any]) -> str:
    undo = step.get("compensation")
    undo_cell = "" if not undo else f"{undo['uses']}: {undo['state']}"
    attempts = "" if step.get("attempts") is None else str(step["attempts"])
    title = step["id"] if step["name"] in (step["id"], step["step"]) else f"{step['id']}: {step['name']}"
    cells = (MARKS.get(step["state"], " "), title, step["uses"], step["state"], attempts, undo_cell)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _because(reason: Mapping[str, Any] | None) -> str:
    if not reason:
        return ""
    where = f" at {reason['step']}" if reason.get("step") else ""
    return f" ({reason['kind']}{where}: {reason.get('message') or 'no message'})"


def _safety(story: Mapping[str, Any]) -> str:
    phase = story.get("phase")
    if story["state"] in ("COMPLETED", "COMPENSATED", "RESIDUE"):
        return "This saga is over."
    terminate = "**Terminate** runs nothing: every effect made so far stays, and nobody undoes it."
    reset = "**Reset** runs the steps again under the same keys: guarded steps give their stored results."
    if phase == "committed":
        return f"Past the point of no return: **Cancel** is refused. {terminate} {reset}"
    if phase == "backward":
        return f"It is being undone: **Cancel** changes nothing. {terminate} {reset}"
    return f"**Cancel** undoes what was done. {terminate} {reset}"
