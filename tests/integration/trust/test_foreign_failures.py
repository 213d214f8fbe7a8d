"""A worker of another project that never counts an attempt is called no more often than the step says."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from saga_workers.serve.public_outcome import public_outcome
from sagas import Rejected, action
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS, MAX_TYPE_CHARACTERS
from sagas.text.exact_json import decode_json
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

AWAY = """
saga: away
steps:
  - id: book
    uses: elsewhere
    with: {n: 1}
    task_queue: QUEUE
    retry: {max_attempts: 3, max_interval: 1s}
    compensate: {uses: elsewhere-undo, with: {}, task_queue: QUEUE, retry: {max_attempts: 2, max_interval: 1s}}
  - {id: close, uses: refuses, effect: none}
"""


@pytest.mark.parametrize("operation", ["do", "undo"])
async def test_attempts_that_are_not_counted_end(temporal: TemporalServer, tmp_path: Path, operation: str) -> None:
    queue = f"other-{uuid.uuid4()}"
    calls: Counter[str] = Counter()

    @activity.defn(dynamic=True)
    async def foreign(args: Sequence[RawValue]) -> int:
        op = decode_json(args[0].payload.data)["_saga"]["op"]
        calls[op] += 1
        if op != operation:
            return 1
        details = {"outcome": "failed", "attempt": 2, "details": {}, "counted": False}
        raise ApplicationError("never", details, type="\x1b[2J" + "T" * 50_000, non_retryable=True)

    @action("refuses")
    async def refuses() -> None:
        raise Rejected("closed")

    text = AWAY.replace("QUEUE", queue)
    project = make_project(tmp_path, {"away": text}, [refuses], address=temporal.address)
    async with running_worker(project) as client, Worker(client.temporal, task_queue=queue, activities=[foreign]):
        run = await client.start("away", {})

        async def is_parked() -> bool:
            return (await client.show(run.id))["state"] == "PARKED"

        await until(is_parked, limit=60)
        made = calls[operation]
        assert made <= 3
        await asyncio.sleep(3)
        assert calls[operation] == made
        [parked] = (await client.show(run.id))["parked"]
        assert "TTT" in parked["why"]
        assert "\x1b" not in parked["why"]
        assert len(parked["why"]) < MAX_TYPE_CHARACTERS + 200


async def test_the_words_of_an_unsigned_rejection_are_quoted(temporal: TemporalServer, tmp_path: Path) -> None:
    """Anybody who reaches Temporal may have said them, and who may only read outcomes is not told them."""
    queue = f"other-{uuid.uuid4()}"

    @activity.defn(dynamic=True)
    async def foreign(args: Sequence[RawValue]) -> int:
        raise ApplicationError("card 4711 " + "x" * 50_000, type="Rejected", non_retryable=True)

    @action("refuses")
    async def refuses() -> None:
        raise Rejected("closed")

    text = AWAY.replace("QUEUE", queue)
    project = make_project(tmp_path, {"away": text}, [refuses], address=temporal.address)
    async with running_worker(project) as client, Worker(client.temporal, task_queue=queue, activities=[foreign]):
        run = await client.start("away", {})
        await finished(client, run.id)
        view = await client.view(run.id)
    assert view.reason is not None
    assert (view.reason.kind, view.reason.quotes) == ("rejected", True)
    assert view.reason.message is not None
    assert len(view.reason.message) <= MAX_MESSAGE_CHARACTERS
    assert "4711" not in str(public_outcome(view)["reason"])


@pytest.mark.parametrize("uses", ["wait", "require"])
async def test_the_reason_of_a_rejection_without_a_call_is_cut(
    temporal: TemporalServer, tmp_path: Path, uses: str
) -> None:
    """A signal, as a record of a topic or any client sends it, and a condition that has words of the input."""
    steps = {
        "wait": "- {id: answer, uses: wait, with: {signal: answered, timeout: 10m}}",
        "require": "- {id: answer, uses: require, with: {that: false, message: '${{ input.words }}'}}",
    }
    text = f"saga: asks\ninput: {{properties: {{words: {{type: string}}}}}}\nsteps:\n  {steps[uses]}\n"
    words = "first" + "x" * 400_000 + "last"
    async with running_worker(make_project(tmp_path, {"asks": text}, [], address=temporal.address)) as client:
        run = await client.start("asks", {"words": words if uses == "require" else "few"})
        if uses == "wait":
            envelope = {"_saga": {"by": "orders/0/1", "reject": words}, "data": None}
            await client.temporal.get_workflow_handle(run.id).signal("answered", envelope)
        await finished(client, run.id)
        view = await client.view(run.id)
    assert view.reason is not None
    assert view.reason.message is not None
    assert len(view.reason.message) <= MAX_MESSAGE_CHARACTERS
    assert view.reason.message.startswith("firstx")
    assert view.reason.message.endswith("xlast")
    [step] = view.steps
    assert (step.id, step.outcome) == ("answer", "rejected")
