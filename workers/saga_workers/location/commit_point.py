"""Decides whether a saga is past its commit point, so that nothing of it may be undone, by what its runs have left.

The guards and the replies to commands tell of decisive effects and of confirms, the states of earlier runs of their
phase, and the ledger of the phase in which the saga was last parked. Only a state proves the opposite: the confirm of a
call outside of a guard leaves no trace, and a saga that was never parked has no row. So the answer may be that nobody
knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.location.traces import RecordedEffect, without_others
from sagas.definition.analysis.commit_evidence import CommitEvidence
from sagas.definition.saga_ids import workflow_id_problem
from sagas.protocol.saga_view import SagaView

CommitPoint = Literal["past", "before", "unknown"]


@dataclass(frozen=True, slots=True)
class CommitTraces:
    """The traces of one saga, of this generation. Under its id there may also be those of another one.

    ``saga``: its name. ``input_digest``: that of its input; None if it is not known. ``done``: entries outside of the
    guards that are done. ``is_committed``: the state of an earlier run says so. ``is_undone``: it is undone, or being
    undone. ``is_lost``: nobody has the state of one of its runs. ``told``: what an operator says of it; None if nobody
    was asked.
    """

    saga_id: str
    saga: str
    generation: int
    input_digest: str | None
    evidence: CommitEvidence
    effects: Sequence[RecordedEffect]
    root_start: str
    done: Collection[str] = ()
    is_committed: bool = False
    is_undone: bool = False
    is_lost: bool = True
    told: bool | None = None


async def find_commit_point(ledger: RunLedger, traces: CommitTraces) -> CommitPoint:
    """On which side of its commit point the saga is. Raises LedgerUnavailable."""
    own = _own_effects(traces)
    in_place = [effect.entry for effect in own if effect.open and effect.command != "sent"]
    done = {_step(entry) for entry in (*traces.done, *in_place)}
    if done.intersection(traces.evidence.decisive):
        return "past"
    if traces.is_undone:
        return "before"
    if traces.is_committed or any(effect.confirmed for effect in own):
        return "past"
    if not traces.is_lost:
        return "before"
    story = await story_in_ledger(
        ledger, traces.saga_id, traces.saga, traces.generation, traces.input_digest, traces.root_start
    )
    if story is not None and story.phase == "committed":
        return "past"
    goes_backward = story is not None and story.phase == "backward"
    recorded = {_step(effect.entry) for effect in own}
    if goes_backward or not traces.evidence.untold or any(step not in recorded for step in traces.evidence.needed):
        return "before"
    return "unknown" if traces.told is None else "past" if traces.told else "before"


def _own_effects(traces: CommitTraces) -> list[RecordedEffect]:
    effects = without_others(traces.effects, traces.saga, traces.input_digest, traces.root_start)
    steps = traces.evidence.steps
    return [effect for effect in effects if effect.generation >= traces.generation and _step(effect.entry) in steps]


async def story_in_ledger(
    ledger: RunLedger, saga_id: str, saga: str, generation: int, input_digest: str | None, root_start: str
) -> SagaView | None:
    """The last view of this saga in the ledger; None if it has none of this generation. The end of another saga, or of
    one with another input or root saga, that was started under its id says nothing about it. Raises LedgerUnavailable.
    """
    if workflow_id_problem(saga_id) is not None:
        return None  # no row has such an id, and a database may not even read it
    row = await ledger.find_story(
        saga_id, saga=saga, generation=generation, input_digest=input_digest, root_start=root_start
    )
    return None if row is None else row.view


def _step(entry: str) -> str:
    return entry.partition("#")[0]
