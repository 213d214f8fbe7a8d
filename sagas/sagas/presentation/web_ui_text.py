"""Markdown for the Temporal Web UI: the state of a running saga, and the summary of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.machine.parked import blocked_steps

STATE_SYMBOLS = {
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
MAX_ROWS = 60
NO_BREAK_SPACE = "\u00a0"
"""Markdown does not collapse it."""


def current_details(story: Mapping[str, Any]) -> str:
    """The details of a run. ``story`` is the `saga show` document; a long saga shows only its first and last steps."""
    lines = [f"**{story['saga']}** is **{story['state']}**" + _reason_phrase(story.get("reason"))]
    nested = blocked_steps(story)
    for entry in story.get("parked") or ():
        waits = "waits for a nested saga" if entry["step"] in nested else _parked_phrase(entry["op"])
        lines += ["", f"⏸ **{entry['step']}** {waits}: {entry['why']}"]
        commands = entry.get("commands") or ()
        if commands:
            lines += ["", "Decisions of an operator:", "", "```", *commands, "```"]
    for entry in story.get("residue") or ():
        left = "its effect stays" if entry["kind"] == "effect_stays" else "its effect is missing"
        lines += ["", f"✖ **{entry['step']}**: {left}"]
    lines += ["", "| state | step | action | undone by |", "|---|---|---|---|"]
    steps = story.get("steps") or []
    shown = steps if len(steps) <= MAX_ROWS else [*steps[: MAX_ROWS // 2], None, *steps[-MAX_ROWS // 2 :]]
    for step in shown:
        lines.append(_step_row(step) if step is not None else f"| … | {len(steps) - MAX_ROWS} more steps | | |")
    lines += ["", _button_advice(story)]
    return "\n".join(lines)


def _parked_phrase(op: str) -> str:
    return {"undo": "could not be undone and waits for an operator", "confirm": "could not be confirmed and waits"}.get(
        op, "waits for an operator"
    )


def _step_row(step: Mapping[str, Any]) -> str:
    undo = step.get("compensation")
    undo_cell = ""
    if undo:
        undo_cell = f"`{undo['uses']}`" + ("" if undo["state"] == "PENDING" else f" {undo['state']}")
    named = step["name"] in (step["id"], step["step"])
    title = f"**{step['id']}**" if named else f"**{step['id']}** {step['name']}"
    state = f"{STATE_SYMBOLS.get(step['state'], ' ')}{NO_BREAK_SPACE}{step['state']}"
    if (step.get("attempts") or 0) > 1:
        state += f" ({step['attempts']} attempts)"
    return table_row(state, title, f"`{step['uses']}`", undo_cell)


def table_row(*cells: str) -> str:
    """One table row. The Web UI has no padding between columns, so each cell ends with a no-break space."""
    return "| " + " | ".join(f"{_one_line(cell)}{NO_BREAK_SPACE}" if cell else "" for cell in cells) + " |"


def _one_line(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _reason_phrase(reason: Mapping[str, Any] | None) -> str:
    if not reason:
        return ""
    where = f" at {reason['step']}" if reason.get("step") else ""
    return f" ({reason['kind']}{where}: {reason.get('message') or 'no reason was given'})"


def _button_advice(story: Mapping[str, Any]) -> str:
    phase = story.get("phase")
    if story["state"] in ("COMPLETED", "COMPENSATED", "RESIDUE"):
        return "This saga has ended. The tab Memo has its whole view."
    terminate = "**Terminate** runs nothing: every effect so far stays, and nothing is undone."
    reset = "**Reset** runs the steps again under the same keys: guarded steps return their stored results."
    if phase == "committed":
        return f"Past the point of no return: **Cancel** is refused. {terminate} {reset}"
    if phase == "backward":
        return f"It is being undone: **Cancel** changes nothing. {terminate} {reset}"
    return f"**Cancel** undoes what was done. {terminate} {reset}"


# The summary of a definition, which does not depend on a run.

KIND_LABELS = {
    "compensatable": "can be undone",
    "pivot": "the point of no return",
    "retriable": "retried until done",
    "read": "reads only",
}


def static_details(definition: Definition) -> str:
    """A table of the steps and their compensations, with the digest of the definition."""
    lines = [definition.description, ""] if definition.description else []
    lines += ["| step | action | kind | undone by |", "|---|---|---|---|"]
    lines += [_definition_row(step) for step in definition.steps]
    lines += [
        "",
        "Cancel undoes what was done, up to the point of no return. "
        "**Terminate skips every compensation**: what was done stays.",
        "",
        f"Definition `{definition.digest}`",
    ]
    return "\n".join(lines)


def _definition_row(step: StepDefinition) -> str:
    undo = " or ".join(f"`{one.uses}`" for one in step.compensate.alternates) if step.compensate else ""
    title = f"**{step.id}**" if step.name == step.id else f"**{step.id}** {step.name}"
    return table_row(title, f"`{step.do.uses}`", KIND_LABELS[step.kind], undo)
