"""Markdown for the Temporal Web UI: the state of a running saga, and the summary of a definition.

Names, reasons and ids may come from data, so they are escaped.
"""

from __future__ import annotations

from sagas.definition.model import Definition, StepDefinition
from sagas.presentation.unproven_effects import unproven_lines
from sagas.protocol.outcomes import PAUSED
from sagas.protocol.saga_view import ReasonView, ResidueView, SagaView, StepView
from sagas.text.markdown import markdown_code, markdown_code_block, markdown_text
from sagas.text.shortening import counted

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


def current_details(view: SagaView) -> str:
    """The details of a run; a long saga shows only its first and last steps."""
    lines = [f"**{markdown_text(view.saga)}** is **{view.state}**" + _reason_phrase(view.reason)]
    if view.pause_text:
        ends_it = f"`{view.resume_command}`" if view.paused and view.paused.kind else "The update `resume`"
        lines += ["", f"⏸ {markdown_text(view.pause_text)}", "", f"{ends_it} lets it go on."]
    if view.lock_wait:
        lines += ["", f"🔒 {markdown_text(view.lock_wait)}"]
    for entry in view.parked:
        waits = "waits for a nested saga" if entry.step in view.blocked_steps else _parked_phrase(entry.op)
        lines += ["", f"⏸ **{markdown_text(entry.step)}** {waits}: {markdown_text(entry.why)}"]
        if entry.commands:
            lines += ["", "Decisions of an operator:", "", *markdown_code_block(entry.commands)]
    for entry in view.residue:
        lines += ["", f"✖ **{markdown_text(entry.step)}**: {residue_text(view, entry)}"]
    lines += [line for text in unproven_lines(view) for line in ("", f"? {markdown_text(text)}")]
    lines += ["", "| state | step | action | undone by |", "|---|---|---|---|"]
    steps = view.steps
    shown = steps if len(steps) <= MAX_ROWS else [*steps[: MAX_ROWS // 2], None, *steps[-MAX_ROWS // 2 :]]
    for step in shown:
        lines.append(
            _step_row(step) if step is not None else f"| … | {counted(len(steps) - MAX_ROWS, 'more step')} | | |"
        )
    lines += ["", _button_advice(view)]
    return "\n".join(lines)


def _parked_phrase(op: str) -> str:
    return {"undo": "could not be undone and waits for an operator", "confirm": "could not be confirmed and waits"}.get(
        op, "waits for an operator"
    )


def _step_row(step: StepView) -> str:
    undo = step.compensation
    undo_cell = ""
    if undo:
        undo_cell = markdown_code(undo.uses) + ("" if undo.state == "PENDING" else f" {undo.state}")
    title = f"**{markdown_text(step.id)}**"
    if step.name not in (step.id, step.step):
        title += f" {markdown_text(step.name)}"
    state = f"{step_symbol(step)}{NO_BREAK_SPACE}{no_effect_text(step) or step.state}"
    if (step.attempts or 0) > 1:
        state += f" ({step.attempts} attempts)"
    return table_row(state, title, markdown_code(step.uses), undo_cell)


def step_symbol(step: StepView) -> str:
    """The symbol of the state of a step; one that a pause has held until its saga went back has not failed."""
    return STATE_SYMBOLS["PENDING"] if was_held(step) else STATE_SYMBOLS.get(step.state, " ")


def was_held(step: StepView) -> bool:
    """True for a step whose next call a pause has held back until its saga went back."""
    return step.state in ("FAILED", "NOTHING_TO_UNDO") and step.error is not None and step.error.type == PAUSED


def no_effect_text(step: StepView) -> str | None:
    """Return what people read of a step that failed for certain, or was sealed; None for any other."""
    if step.state not in ("FAILED", "NOTHING_TO_UNDO") or step.outcome not in ("failed", "rejected"):
        return None
    return "held back, nothing happened" if was_held(step) else f"{step.outcome}, nothing happened"


def residue_text(view: SagaView, residue: ResidueView) -> str:
    """Return what people read of a residue."""
    return f"its effect {effect_state(view, residue)}"


def effect_state(view: SagaView, residue: ResidueView) -> str:
    """Return the verb of a sentence about an effect; nobody knows whether there is one if the outcome is unknown."""
    if residue.kind == "effect_missing":
        return "is missing"
    if residue.kind == "effect_unclear":
        return "may be missing"
    steps = () if residue.saga else view.steps
    is_unknown = any(step.id == residue.step and step.outcome == "unknown" for step in steps)
    return "may remain" if is_unknown else "stays"


def table_row(*cells: str) -> str:
    """One table row of Markdown cells. The Web UI has no padding between columns: a no-break space ends each cell."""
    return "| " + " | ".join(f"{cell}{NO_BREAK_SPACE}" if cell else "" for cell in cells) + " |"


def _reason_phrase(reason: ReasonView | None) -> str:
    if reason is None:
        return ""
    where = f" at {markdown_text(reason.step)}" if reason.step else ""
    return f" ({reason.title}{where}: {markdown_text(reason.message or 'no reason was given')})"


def _button_advice(view: SagaView) -> str:
    if view.state in ("COMPLETED", "COMPENSATED", "RESIDUE"):
        return "This saga has ended. The tab Memo has its whole view."
    terminate = "**Terminate** runs nothing: every effect so far stays, and nothing is undone."
    reset = "**Reset** runs the steps again under the same keys: guarded steps return their stored results."
    if view.phase == "committed":
        return f"Past the point of no return: **Cancel** is refused. {terminate} {reset}"
    if view.phase == "backward" and view.repeated_from is None:
        return f"It is being undone: **Cancel** changes nothing. {terminate} {reset}"
    return f"**Cancel** undoes what was done. {terminate} {reset}"


KIND_LABELS = {
    "compensatable": "can be undone",
    "pivot": "the point of no return",
    "retriable": "retried until done",
    "read": "reads only",
}


def static_details(definition: Definition) -> str:
    """A table of the steps and their compensations, with the digest of the definition."""
    lines = [markdown_text(" ".join(definition.description.split())), ""] if definition.description else []
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
    undo = (
        " or ".join(markdown_code(alternate.uses) for alternate in step.compensate.alternates)
        if step.compensate
        else ""
    )
    title = f"**{step.id}**" if step.name == step.id else f"**{step.id}** {markdown_text(step.name)}"
    return table_row(title, markdown_code(step.do.uses), KIND_LABELS[step.kind], undo)
