"""A signed start that is sent once more long after it was signed starts nothing that needs its signature."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.protocol.payloads import DEFINITION_HEADER, GENERATION_HEADER, SIGNATURE_HEADER
from sagas.protocol.signed_start import START_LIFETIME, sign_start
from tests.helpers.local_worker import running_worker
from tests.integration.trust.conftest import OWN, Shop

REPLACED = OWN.replace("maxLength: 5", "maxLength: 6")


async def start(
    client: Client, header: Any, age: float, *, earlier: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Send a start with the signature that a client has made ``age`` seconds ago."""
    id, input, earlier = f"own-{uuid.uuid4()}", {"text": "x"}, earlier or {}
    keys = client.project.settings.signing_keys()
    signature = sign_start(keys, id, header.data, {id: input}, earlier, at=time.time() - age)
    queue = client.project.settings.temporal.task_queue
    with start_headers({DEFINITION_HEADER: header, SIGNATURE_HEADER: to_header(signature), **earlier}):
        return await client.temporal.start_workflow("own", input, id=id, task_queue=queue, **options)


async def refusal(run: Any) -> str:
    with pytest.raises(WorkflowFailureError) as caught:
        await run.result()
    return str(caught.value.cause)


async def test_a_signature_starts_a_replaced_definition_for_a_day(shop: Shop) -> None:
    header = shop.header(REPLACED)
    async with running_worker(shop.with_keys("k" * 32)) as client:
        for age in (START_LIFETIME + 60, -START_LIFETIME - 60):
            why = await refusal(await start(client, header, age))
            assert "signed more than 24 hours before or after it" in why, why
            assert shop.said == []
        for age in (START_LIFETIME - 60, 60 - START_LIFETIME):  # the clock of a client may be wrong
            await (await start(client, header, age)).result()
        delayed = await start(client, header, START_LIFETIME - 60, start_delay=timedelta(seconds=1))
        await delayed.result()
        assert shop.said == ["x"] * 3


async def test_a_signature_repeats_a_saga_for_a_day(shop: Shop) -> None:
    header, earlier = shop.header(), {GENERATION_HEADER: 5}
    async with running_worker(shop.with_keys("k" * 32)) as client:
        why = await refusal(await start(client, header, START_LIFETIME + 60, earlier=earlier))
        assert "signed more than 24 hours before or after it" in why, why
        await (await start(client, header, 0, earlier=earlier)).result()
        await (await start(client, header, START_LIFETIME + 60)).result()  # which needs no signature
        assert shop.said == ["x"] * 2


async def test_the_time_of_a_signature_is_signed(shop: Shop) -> None:
    header, input = shop.header(REPLACED), {"text": "x"}
    async with running_worker(shop.with_keys("k" * 32)) as client:
        id, keys, now = f"own-{uuid.uuid4()}", client.project.settings.signing_keys(), time.time()
        signature = sign_start(keys, id, header.data, {id: input}, at=now - START_LIFETIME - 60)
        for issued_at in (int(now), None):
            forged = {**(signature or {}), "issued_at": issued_at}
            run = await shop.start(client, "own", input, header, id=id, signature=forged)
            assert "not signed with its key" in await refusal(run)
        assert shop.said == []
