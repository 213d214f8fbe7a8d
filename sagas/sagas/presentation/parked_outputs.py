"""The outputs of a Spark step whose undo is parked: what differs, and what can be done by hand."""

from __future__ import annotations

from typing import NamedTuple

from sagas.presentation.parked_rows import image_text
from sagas.presentation.styled_text import GIVEN_BY_THE_RUN, Line
from sagas.protocol.saga_view import ParkedView, SagaView
from sagas.text.shortening import counted


class PartlyUndone(NamedTuple):
    """The outputs of a step by name: those that its parked undo has reverted, and those that remain."""

    reverted: tuple[str, ...]
    remaining: tuple[str, ...]


def partly_undone(view: SagaView, step: str) -> PartlyUndone | None:
    """The outputs of a step whose undo is parked at some of them; else None."""
    for parked in view.parked:
        if parked.step == step and parked.outputs:
            return PartlyUndone(parked.reverted or (), tuple(output.output for output in parked.outputs))
    return None


def output_lines(parked: ParkedView) -> list[Line]:
    """Each output that remains, with the rows that differ."""
    lines: list[Line] = []
    for output in parked.outputs or ():
        lines.append([("  remains  ", "dim"), (f"{output.output}: {output.place} in {output.system}", "bold")])
        if output.why not in parked.why:
            lines.append([(f"    {output.why}", "dim")])
        for row in output.rows or ():
            lines.append([("    row    ", "dim"), (image_text(row.key), "bold")])
            lines.append([("      before ", "dim"), (image_text(row.before), "")])
            lines.append([("      now    ", "dim"), (image_text(row.now), "")])
        if output.rows_omitted:
            lines.append([(f"    … and {counted(output.rows_omitted, 'more row')}", "dim")])
        if output.by_hand:
            lines.append([(f"    by hand, {GIVEN_BY_THE_RUN}", "dim")])
            lines += [[("      " + line, "cyan")] for line in output.by_hand.splitlines()]
    return lines
