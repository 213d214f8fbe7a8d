"""Claims of a start about the state and the end of its saga: memos and search attributes of any client."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.views.saga_list import SagaFilter, query_sagas
from sagas.project import Project
from sagas.protocol.payloads import (
    BATCH_WORKFLOW,
    NOTIFICATION_MEMO,
    NOTIFICATION_WORKFLOW,
    OUTCOME_MEMO,
    OWNER_HEADER,
    PAUSE_MEMO,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
)
from sagas.protocol.saga_view import SagaView
from sagas.settings.codec import CodecSettings
from sagas.workflow.json_payloads import MISSING_KEY_ENCODING
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import OWN, Shop

FORGED = {"id": "forged", "saga": "own", "state": "COMPLETED", "phase": "committed", "output": {"paid": True}}
CLAIMS = {
    OUTCOME_MEMO: FORGED,
    PAUSE_MEMO: {"at": "2026-03-01T09:00:00Z", "who": "nobody", "reason": "a claim"},
}
STATE, PAUSED = map(SearchAttributeKey.for_keyword, ("SagaState", "SagaPaused"))
FORGED_STATE = TypedSearchAttributes(
    [SearchAttributePair(STATE, "COMPENSATED"), SearchAttributePair(PAUSED, "operator")]
)
UNREADABLE = {
    "no json": RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{")),
    "foreign": RawValue(Payload(metadata={"encoding": b"binary/strange"}, data=b"{")),
    "encrypted": RawValue(Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"k"}, data=b"{")),
    "missing key": RawValue(Payload(metadata={"encoding": MISSING_KEY_ENCODING.rpartition(b"/")[0]}, data=b"k")),
}


async def claim(client: Client, shop: Shop, type: str, id: str, input: Any, **memo: Any) -> Any:
    """Start a workflow that claims to have ended."""
    queue = shop.project.settings.temporal.task_queue
    return await client.temporal.start_workflow(
        type, input, id=id, task_queue=queue, memo=memo, search_attributes=FORGED_STATE
    )


def encrypted(shop: Shop) -> Project:
    """The project with a codec."""
    codec = CodecSettings(key=secrets.token_hex(32))
    return Project(shop.project.settings.model_copy(update={"codec": codec}), shop.project.actions)


async def test_a_refused_start_takes_no_id_of_an_encrypted_project(shop: Shop) -> None:
    """Whoever starts it has no key, and claims an end for an id that a saga has, or will have."""
    project, used, unused = encrypted(shop), f"used-{uuid.uuid4()}", f"unused-{uuid.uuid4()}"
    async with running_worker(project) as client:
        await client.start("pair", {}, id=used)
        assert (await finished(client, used))["state"] == "COMPLETED"
        stranger = Temporal(client.temporal.service_client, namespace=client.temporal.namespace)
        for id in (used, unused):
            queue = project.settings.temporal.task_queue
            handle = await stranger.start_workflow("own", {"text": "too long"}, id=id, task_queue=queue, memo=CLAIMS)
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            assert not (await handle.describe()).raw_description.workflow_execution_info.memo.fields.keys() & CLAIMS
        view = await client.show(used)
        assert (view["state"], view.get("incomplete")) == ("COMPLETED", None)
        await client.undo(used, reason="as its owner wants", who="owner")
        await finished(client, f"{used}{UNDO_SUFFIX}")
        assert (await client.show(used))["state"] == "COMPENSATED"
        await client.start("own", {"text": "x"}, id=unused)
        assert (await finished(client, unused))["state"] == "COMPLETED"


@pytest.mark.parametrize("type", ["own", BATCH_WORKFLOW])
async def test_a_refused_start_has_no_outcome(shop: Shop, type: str) -> None:
    async with running_worker(shop.project) as client:
        handle = await claim(client, shop, type, f"forged-{uuid.uuid4()}", {"text": "too long"}, saga=FORGED)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        view = await client.show(handle.id)
        assert (view["state"], view["output"], view["reason"]["type"]) == ("FAILED", None, "SagaRefused")
        described = await handle.describe()
        assert [described.typed_search_attributes.get(key) for key in (STATE, PAUSED)] == [None, None]


async def test_a_saga_ends_with_its_own_outcome(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        memo = {OUTCOME_MEMO: FORGED, STARTED_AT_MEMO: "soon"}
        handle = await claim(client, shop, "own", f"forged-{uuid.uuid4()}", {"text": "x"}, **memo)
        view = await finished(client, handle.id)
    assert (view["id"], view["state"], view["output"]) == (handle.id, "COMPLETED", None)


async def test_a_run_that_no_worker_has_begun_has_no_outcome(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        handle = await client.temporal.start_workflow(
            "own",
            {"text": "x"},
            id=f"forged-{uuid.uuid4()}",
            task_queue="nobody",
            memo=CLAIMS,
            search_attributes=FORGED_STATE,
        )
        assert (await client.show(handle.id))["state"] == "RUNNING"

        async def listed() -> list[SagaView]:
            asked = SagaFilter(task_queue="nobody", workflow_id=handle.id)
            return [view async for view in query_sagas(client.locator, asked, limit=5)]

        [shown] = await until(listed)
        assert shown.paused is None
        await handle.terminate("a claim")
        view = await client.show(handle.id)
    assert (view["state"], view["output"], view["steps"]) == ("TERMINATED", None, [])


@pytest.mark.parametrize("form", UNREADABLE)
async def test_memos_that_are_no_json_hide_nothing(shop: Shop, form: str) -> None:
    """One such start made `saga list` an internal error for everybody."""
    names = (OUTCOME_MEMO, STARTED_AT_MEMO, NOTIFICATION_MEMO, "of-somebody")
    async with running_worker(shop.project) as client:
        handle = await claim(
            client, shop, "own", f"forged-{uuid.uuid4()}", {"text": "x"}, **dict.fromkeys(names, UNREADABLE[form])
        )
        assert (await finished(client, handle.id))["state"] == "COMPLETED"

        async def listed() -> bool:
            criteria = SagaFilter(task_queue=shop.project.settings.temporal.task_queue)
            return handle.id in [view.id async for view in query_sagas(client.locator, criteria, limit=50)]

        await until(listed)


@pytest.mark.parametrize(
    ("labels", "kept"),
    [("", ["text=vip", "customer=1"]), ("labels: {text: '${{ input.text }}'}", ["text=x", "customer=1"])],
)
async def test_labels_of_the_definition_are_those_of_the_input(shop: Shop, labels: str, kept: Any) -> None:
    """Labels of a forged start do not replace labels of the definition; it may add others, such as `batch`."""
    key = SearchAttributeKey.for_keyword_list("SagaLabels")
    forged = TypedSearchAttributes([SearchAttributePair(key, ["text=vip", "customer=1"])])
    async with running_worker(shop.with_keys("a" * 32, accept="any")) as client:
        header = shop.header(f"{OWN}{labels}\n")
        handle = await shop.start(client, "own", {"text": "x"}, header, search_attributes=forged)
        await handle.result()
        assert (await handle.describe()).typed_search_attributes.get(key) == kept


@pytest.mark.parametrize("status", [None, 1, [], {"saga_id": 1, "error": "no", "attempts": "many", "ended_at": {}}])
async def test_a_forged_notification_has_no_status(shop: Shop, status: Any) -> None:
    async with running_worker(shop.project) as client:
        saga = f"own-{uuid.uuid4()}"
        with start_headers({OWNER_HEADER: saga}):
            handle = await claim(
                client, shop, NOTIFICATION_WORKFLOW, f"{saga}~notify-x", {}, **{NOTIFICATION_MEMO: status}
            )
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert NOTIFICATION_MEMO not in await (await handle.describe()).memo()
