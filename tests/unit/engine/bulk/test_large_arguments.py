"""Arguments that no payload carries fail the saga that has them, and no workflow task."""

from __future__ import annotations

import json

from sagas.bulk.bulk_machine import BulkMachine, NewSaga, PerformChunk
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.protocol.outcomes import Outcome
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES


def test_a_saga_with_too_large_arguments_fails_alone() -> None:
    do = Operation(uses="keep", connection="bank", with_={"both": "${{ [input.text, input.text] }}"})
    step = StepDefinition(id="keep", name="keep", kind="pivot", do=do, guarantee="guarded")
    definition = Definition(saga="keep", steps=(step,), digest="sha256:keep")
    bulk = BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)
    long = "x" * (MAX_PAYLOAD_BYTES // 2)
    commands = bulk.start([NewSaga("long", {"text": long}, {}), NewSaga("short", {"text": ""}, {})], 0.0)
    chunk = next(command for command in commands if isinstance(command, PerformChunk))
    assert [call.saga_id for call in chunk.calls] == ["short"]
    bulk.chunk_ended(chunk.id, [Outcome.done(None, attempt=1)], 1.0)
    assert bulk.counts() == {"COMPENSATED": 1, "COMPLETED": 1}
    reason = bulk.view("long").reason
    assert reason is not None
    assert (reason.kind, reason.type) == ("definition", "definition")
    assert "bytes; Temporal accepts" in (reason.message or "")
    state = json.dumps(bulk.members["long"].leave_happy_path().compact_snapshot())
    assert len(state) < MAX_PAYLOAD_BYTES, "the input stays in it, the arguments do not"
