"""The Markdown of a definition: what people read in the Web UI about a saga before anything has happened."""

from __future__ import annotations

from sagas.definition.model import Definition, Step
from sagas.details import table_row

KINDS = {
    "compensatable": "can be undone",
    "pivot": "the point of no return",
    "retriable": "retried until done",
    "read": "reads only",
}


def static_details(definition: Definition) -> str:
    """A table of the steps and what undoes them, with the digest of the definition."""
    lines = [definition.description, ""] if definition.description else []
    lines += ["| step | action | kind | undone by |", "|---|---|---|---|"]
    lines += [_row(step) for step in definition.steps]
    lines += [
        "",
        "Cancel undoes what was done, up to the point of no return. "
        "**Terminate skips every compensation**: what was done stays.",
        "",
        f"Definition `{definition.digest}`",
    ]
    return "\n".join(lines)


def _row(step: Step) -> str:
    undo = " or ".join(f"`{one.uses}`" for one in step.compensate.alternates) if step.compensate else ""
    title = f"**{step.id}**" if step.name == step.id else f"**{step.id}** {step.name}"
    return table_row(title, f"`{step.do.uses}`", KINDS[step.kind], undo)
