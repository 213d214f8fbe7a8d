"""A bulk workflow of any client starts its sagas without those whose inputs are at fault, and names these."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from saga_workers.bulk.acceptance import wait_accepted
from saga_workers.client import SagaHandle
from saga_workers.start.bulk_rows import BulkRowStarter
from saga_workers.start.row_starts import StartRow
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_limits import StartLimits
from saga_workers.start.start_requests import StartRequest
from saga_workers.start.tally import Tally
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.definition.snapshot import to_snapshot
from sagas.errors import UsageError
from sagas.protocol.payloads import BULK_PREFIX, BULK_WORKFLOW, DEFINITION_HEADER
from tests.helpers.local_worker import finished
from tests.helpers.nested_lists import nested_list
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank


async def start_by_hand(bank: Bank, inputs: Mapping[str, Any], saga: str = "waiting") -> WorkflowHandle[Any, Any]:
    """Start a bulk workflow as a client in another language, which validates nothing."""
    definition = bank.project.definition(saga)
    rows = [[id, input, {}] for id, input in inputs.items()]
    with start_headers({DEFINITION_HEADER: to_header({"definition": to_snapshot(definition)})}):
        return await bank.client.temporal.start_workflow(
            BULK_WORKFLOW,
            {"saga": saga, "sagas": rows},
            id=f"{BULK_PREFIX}{saga}-{uuid.uuid4()}",
            task_queue=bank.project.settings.temporal.task_queue,
        )


async def test_the_inputs_at_fault_are_named_and_the_others_start(bank: Bank) -> None:
    inputs = {
        "by-hand-1": {"id": "by-hand-1", "waits": False},
        "by-hand-2": {"id": 2},
        "by/hand/3": {"id": "by-hand-3"},
        "by-hand-4": {"id": "by-hand-4", "note": nested_list(120)},
        "by-hand-5": {"id": "by-hand-5", "waits": False},
    }
    handle = await start_by_hand(bank, inputs)
    accepted = await wait_accepted(handle, list(inputs))
    assert accepted is not None
    assert {id: why.partition(":")[0] for id, why in accepted.refused.items()} == {
        "by-hand-2": "the input of waiting is not valid",
        "by/hand/3": "the id by/hand/3 must not contain /, which marks nested sagas",
        "by-hand-4": "the input of by-hand-4 is refused",
    }
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert result["counts"] == {"COMPLETED": 2}
    assert result["refused"] == accepted.refused
    assert bank.states() == {"by-hand-1": "COMPLETED", "by-hand-5": "COMPLETED"}


async def test_the_inputs_of_any_client_are_completed(bank: Bank) -> None:
    bank.open_accounts(3)
    common = {"from": "a1", "to": "a2", "text": "given"}
    inputs = {
        "complete": {"id": "complete", **common, "amount": 1},
        "without-text": {"id": "without-text", "from": "a1", "to": "a3", "amount": 2},
        "with-a-point": {"id": "with-a-point", **common, "amount": Decimal("3.0")},
    }
    handle = await start_by_hand(bank, inputs, "transfer")
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert result["counts"] == {"COMPLETED": 3}
    assert dict(bank.query("select id, text from note")) == dict.fromkeys(inputs, "given") | {"without-text": "ok"}
    view = await bank.client.view("with-a-point")
    assert (str(view.input["amount"]), view.output) == ("3", {"moved": 3})
    # Started by this client, the same input has the same digest.
    (again,) = await bank.client.start_many("transfer", [inputs["without-text"]], bulk=True)
    assert (again.id, again.started) == ("without-text", False)


async def test_a_bulk_start_without_a_valid_input_fails(bank: Bank) -> None:
    handle = await start_by_hand(bank, {"none-1": {"id": 1}, "none-2": {}})
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), LIMIT)
    assert "all sagas are refused, none-1 because the input of waiting is not valid: input.id" in str(
        failed.value.cause
    )


async def test_callers_that_share_a_start_are_told_about_their_own_input(bank: Bank) -> None:
    starter = await bank.client.starter("waiting")
    shared = SharedStarts(starter)
    requests = [StartRequest({"id": id}, str(id), {}) for id in ("shared-1", 2, "shared-3")]  # 2: not checked here
    answers = await asyncio.gather(*(shared.start(request) for request in requests), return_exceptions=True)
    assert isinstance(answers[1], UsageError)
    assert "the input of waiting is not valid: input.id: 2 is not a string" in str(answers[1])
    assert [answer.started for answer in answers if not isinstance(answer, BaseException)] == [True, True]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("bulk", [True, False])
async def test_the_python_client_starts_the_others_and_names_the_input_at_fault(bank: Bank, bulk: bool) -> None:
    def named(name: str) -> list[dict[str, Any]]:
        ids = [f"{name}-{bulk}-{number}" for number in (1, 2, 3)]
        return [{"id": ids[0]}, {"id": ids[1], "waits": "no"}, {"id": ids[2]}]

    first = await bank.client.start_many("waiting", named("in-list"), bulk=bulk, return_exceptions=True)
    assert isinstance(first[1], UsageError)
    assert str(first[1]).startswith("input 2 of 3: the input of waiting is not valid: input.waits")
    handles = [handle for handle in first if isinstance(handle, SagaHandle)]
    assert [(handle.id, handle.started) for handle in handles] == [
        (f"in-list-{bulk}-1", True),
        (f"in-list-{bulk}-3", True),
    ]
    with pytest.raises(UsageError, match="input 2 of 3: the input of waiting"):
        await bank.client.start_many("waiting", named("raised"), bulk=bulk)
    ids = [*(handle.id for handle in handles), f"raised-{bulk}-1", f"raised-{bulk}-3"]
    views = [await finished(bank.client, id) for id in ids]
    assert [view["state"] for view in views] == ["COMPLETED"] * 4


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("waits", [True, False])
async def test_the_rows_of_a_file_are_counted_one_by_one(bank: Bank, waits: bool) -> None:
    starter = await bank.client.starter("waiting")
    ids = [f"row-{waits}-1", 2, f"row-{waits}-3"]
    rows = [StartRow(f"f.csv:{at}", str(id), StartRequest({"id": id}, str(id), {})) for at, id in enumerate(ids, 1)]
    tally = Tally(len(rows))
    starting = BulkRowStarter(
        500, starter, tally, StartLimits(), StartGate(), batch="b", wait_for_end=waits, progress=lambda _: None
    )
    await asyncio.wait_for(starting.start_all(rows), LIMIT)
    assert (tally.started, tally.refused) == (2, 1)
    assert len(tally.troubles) == 1
    assert tally.troubles[0].startswith("f.csv:2: 2 cannot be started: the input of waiting is not valid: input.id")
