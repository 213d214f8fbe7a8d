"""The last question about a pivot that an operator has given up: its probe may know by now that it happened.

The rollback does not wait for the answer, only the end of the saga does.
"""

from __future__ import annotations

from sagas.machine import calls, residue
from sagas.machine.corrected_probes import probe_of
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.internal_events import LookupVerdict
from sagas.machine.state import Entry, SagaRun


def is_asked(run: SagaRun) -> bool:
    """Ask the probe of a pivot that was given up, once. True while its answer is awaited."""
    entry = _given_up(run)
    if entry is None:
        return False
    if entry.flight is None and not entry.looked_up:
        entry.looked_up = True
        try:
            calls.send_call(run, entry, "probe", "given_up")
        except DefinitionError:
            return False  # the operator's word is all there is
    return entry.flight is not None


def answered(run: SagaRun, entry: Entry, verdict: LookupVerdict) -> None:
    """The effect exists, contrary to what the operator has vouched for, and nothing undoes it: it is a residue."""
    if verdict == "done":
        residue.add_residue(run, entry, "effect_stays", "do")


def _given_up(run: SagaRun) -> Entry | None:
    """The pivot whose effect is unknown to the saga, but denied by an operator, and which has a probe."""
    if run.plan.pivot is None:
        return None
    for entry in run.steps[run.plan.pivot.id].entries:
        if entry.outcome == "unknown" and entry.resolved and probe_of(run, entry) is not None:
            return entry
    return None
