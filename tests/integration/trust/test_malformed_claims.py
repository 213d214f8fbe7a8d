"""Malformed headers, inputs and signals of any client: what cannot be read is refused, and blocks no workflow task."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.protocol.payloads import (
    DEFINITION_HEADER,
    DETACHED_HEADER,
    GENERATION_HEADER,
    NOTIFICATION_WORKFLOW,
    OWNER_HEADER,
    RESUMED_HEADER,
    SIGNATURE_HEADER,
)
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_definition_trust import KEYS, forged_notification, refusal

HUGE = 10**400

HEADERS: list[tuple[str, Any]] = [
    *(
        (RESUMED_HEADER, {"started_at": at, "generations": {}, "undone": []})
        for at in (HUGE, -1, "x", None, 1e18, True)
    ),
    *(
        (RESUMED_HEADER, {"started_at": 1, "generations": of, "undone": []})
        for of in ([[1, 1]], {"say": True}, {"say": 0}, 5)
    ),
    *((RESUMED_HEADER, {"started_at": 1, "generations": {}, "undone": of}) for of in (5, [1], None)),
    *((GENERATION_HEADER, value) for value in (0, "1", True, HUGE, [])),
    *((DETACHED_HEADER, value) for value in (None, 5, {"key": "x", "hmac": "\u00e9"})),
]

ATTRIBUTES = (5, None, {"SagaState": 1}, [5], [["SagaState"]], "SagaState")


def plain(value: Any) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


async def start(client: Client, shop: Shop, headers: dict[str, Any], input: Any, **options: Any) -> Any:
    queue = shop.project.settings.temporal.task_queue
    id = options.pop("id", f"own-{uuid.uuid4()}")
    with start_headers(headers):
        return await client.temporal.start_workflow(options.pop("type", "own"), input, id=id, task_queue=queue)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("accept", ["signed", "any"])
async def test_what_a_start_brings_is_read_or_refused(shop: Shop, accept: str) -> None:
    async with running_worker(shop.with_keys(KEYS[0], accept=accept)) as client:
        runs = []
        definition = shop.header()
        for attributes in ATTRIBUTES:
            sent = json.loads(definition.data)
            header = plain({**sent, "attributes": attributes})
            runs.append(await start(client, shop, {DEFINITION_HEADER: header}, {"text": "x"}))
        for name, value in HEADERS:
            headers = {DEFINITION_HEADER: definition, name: plain(value)}
            runs.append(await start(client, shop, headers, {"text": "x"}))
        for state in ({"machine": "forged", "attributes": []}, {"machine": 5}, 5, None, {}):
            runs.append(await start(client, shop, {DETACHED_HEADER: plain({})}, state))
        for who, reason in ((5, "x"), ("x", {"a": 1}), ([], [])):
            owner = f"own-{uuid.uuid4()}"
            done = await start(client, shop, {DEFINITION_HEADER: definition}, {"text": "y"}, id=owner)
            await done.result()
            undo = {"who": who, "reason": reason}
            runs.append(await start(client, shop, {OWNER_HEADER: to_header(owner)}, undo, id=f"{owner}~undo"))
        for run in runs:
            await refusal(run)
    assert set(shop.said) == {"y"}


async def test_a_signature_of_any_form_is_none(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        for value in (5, [], {"key": 1, "hmac": 2}, {"key": "x", "hmac": "\u00e9"}):
            headers = {DEFINITION_HEADER: shop.header(vars={"text": "forged"}), SIGNATURE_HEADER: plain(value)}
            assert "its start not signed" in await refusal(await start(client, shop, headers, {"text": "x"}))


CALL = {"timeout": 5, "task_queue": None, "summary": "x"}
ODD_CALLS: list[dict[str, Any]] = [
    {name: value}
    for name, values in {
        "timeout": ("text", None, 0, -1, HUGE, [], True),
        "task_queue": (5, "", "x" * 2000, "/_sys/x"),
        "summary": (5, None),
        "argument": (5, {}, {"_saga": 5}, None),
    }.items()
    for value in values
]
ODD_FIELDS: list[dict[str, Any]] = [
    {name: value}
    for name, values in {
        "intervals": (5, ["text"], [None], [-1], [HUGE], "5"),
        "call": (5, [], "x"),
        "uses": (5, "", "x" * 2000),
        "saga": (5, None),
        "saga_id": (5, None, []),
        "when": (5, None),
        "notification": (5, None),
        "problem": (5, {}),
    }.items()
    for value in values
]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("accept", ["any", "signed"])  # "any" first: where a signature is asked for, that refuses them
async def test_an_odd_order_of_a_notification_is_refused(shop: Shop, accept: str) -> None:
    order = forged_notification()
    orders: list[Any] = [{**order, **odd} for odd in ODD_FIELDS]
    orders += [{**order, "call": {**order["call"], **odd}} for odd in ODD_CALLS]
    orders += [{**order, "call": {}}, {}, 5, None, []]
    async with running_worker(shop.with_keys(KEYS[0], accept=accept)) as client:
        runs = []
        for odd in orders:
            owner = f"own-{uuid.uuid4()}"
            headers = {OWNER_HEADER: to_header(owner)}
            runs.append(
                await start(client, shop, headers, plain_input(odd), id=f"{owner}~notify-x", type=NOTIFICATION_WORKFLOW)
            )
        for run in runs:
            await refusal(run)
    assert shop.said == []


def plain_input(value: Any) -> RawValue:
    """JSON of a client whose integers may be of any size."""
    return RawValue(plain(value))


OUTER = """
saga: outer
steps:
  - {id: child, uses: saga, with: {name: waiting}}
"""


async def test_no_signal_says_how_a_nested_saga_has_ended(shop: Shop) -> None:
    """A forged report made a nested saga one with a residue, with row locks of any connection."""
    async with running_worker(shop.with_keys(KEYS[0], accept="any")) as client:
        outer = await shop.start(client, "outer", {}, shop.header(OUTER))
        nested = client.temporal.get_workflow_handle(f"{outer.id}/child")
        residue = {"step": "say", "kind": "effect_stays"}
        for report in (
            {"id": nested.id, "state": "RESIDUE", "residue": [residue], "row_locks": ["shop"]},
            {"id": nested.id, "state": "COMPLETED", "residue": [], "row_locks": [5]},
            {"id": nested.id, "state": 5, "residue": [], "row_locks": 5},
        ):
            await outer.signal("saga-residue", report)
        for report in (
            {"id": nested.id, "state": "PARKED", "blocked": 5, "waits": []},
            {"id": nested.id, "state": "PARKED", "blocked": True, "waits": [{"id": 1}]},
        ):
            await outer.signal("saga-parked", report)

        async def is_there() -> bool:
            return any(child["state"] == "RUNNING" for child in (await client.show(outer.id))["children"])

        await until(is_there)
        for odd in ({"by": 5}, {"reject": {"a": 1}}, {"reject": 5}):
            await nested.signal("approved", {"_saga": odd, "data": 1})
        await nested.signal("approved")
        view = await finished(client, outer.id)
    assert (view["state"], view["residue"]) == ("COMPLETED", [])
