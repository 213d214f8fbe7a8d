"""Says how a run on the databases differs from the simulated run with the same fault."""

from __future__ import annotations

from collections.abc import Sequence

from sagas.simulation import SimulatedRun
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_MAX_TEXT = 300
"""Characters of a reason, which a database may have written."""


def deviation(simulated: SimulatedRun, run: SimulatedRun) -> str | None:
    """The difference, as the end of a sentence about the order; None if the undos that are to be tested have run.

    An operation that waits for an operator is not named, as it is a problem of its own.
    """
    if run.parked:
        return None
    if run.state != simulated.state or _cause(run) != _cause(simulated):
        return f"ended {_end(run)}"
    if run.undone != simulated.undone:
        return f"has undone {_listed(run.undone)}; in `saga simulate` it undoes {_listed(simulated.undone)}"
    return None


def _cause(run: SimulatedRun) -> tuple[str | None, str | None] | None:
    return None if run.reason is None else (run.reason["kind"], run.reason["step"])


def _end(run: SimulatedRun) -> str:
    state = "" if run.state == "COMPENSATED" else f"{run.state} "
    if run.reason is None:
        return state or "without a reason"
    place = run.reason["step"] or run.reason["kind"]
    return f"{state}at {place}: {shorten(printable_line(str(run.reason['message'])), _MAX_TEXT)}"


def _listed(undone: Sequence[str]) -> str:
    return ", ".join(undone) or "nothing"
