"""Records the histories of events that start their compensated saga again; see :mod:`tests.replay.record`."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from saga_workers.client import Client
from sagas import Rejected, action
from sagas.protocol.redelivery_names import redelivery_workflow_id
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.replay.history_files import write

ORDER = """
saga: order
input: {type: object, properties: {shop: {type: string}}}
triggers: {kafka: {topic: orders, redeliver: true}}
steps:
  - {id: take, uses: shop.take, compensate: shop.give}
  - {id: pay, uses: shop.pay, effect: none}
"""


@action("shop.take")
async def take() -> None: ...


@action("shop.give")
async def give() -> None: ...


@action("shop.pay")
async def pay() -> None:
    raise Rejected("not enough money")


async def start(client: Client, id: str, intervals: Sequence[float]) -> str:
    """Start the saga as a trigger does; the id of the run that starts it again."""
    starter = await client.starter("order")
    request = await starter.check({})
    await starter.start(replace(request, redelivery={"intervals": list(intervals), "passed": 0}), id=id)
    return redelivery_workflow_id(id, 1)


async def close(client: Client, id: str) -> None:
    """Until there is a run with this id and it is over, however it ends."""

    async def is_there() -> bool:
        with contextlib.suppress(RPCError):
            await client.temporal.get_workflow_handle(id).describe()
            return True
        return False

    await until(is_there)
    with contextlib.suppress(WorkflowFailureError):
        await client.temporal.get_workflow_handle(id).result()


async def record(client: Client, definition: Path) -> list[Path]:
    """A saga that is started again once, a start that is cancelled, and one that is refused."""
    redelivery = await start(client, "again", [1.0])
    exhausted = redelivery_workflow_id("again", 2)
    await close(client, exhausted)
    written = await write(client, "again", "redelivered")
    written += await write(client, redelivery, "redelivery") + await write(client, exhausted, "redelivery-exhausted")

    redelivery = await start(client, "cancelled", [3600.0])
    await until(lambda: _is_due(client, "cancelled"))
    await client.temporal.get_workflow_handle(redelivery).cancel()
    await close(client, redelivery)
    written += await write(client, redelivery, "redelivery-cancelled")

    redelivery = await start(client, "refused", [2.0])
    await until(lambda: _is_due(client, "refused"))
    text = await asyncio.to_thread(definition.read_text)
    await asyncio.to_thread(definition.write_text, text.replace("type: object,", "type: object, required: [shop],"))
    await close(client, redelivery)
    return written + await write(client, redelivery, "redelivery-refused")


async def _is_due(client: Client, id: str) -> bool:
    redelivery = (await client.view(id)).redelivery
    return redelivery is not None and redelivery.is_due


async def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        TemporalServer(Path(folder) / "temporal") as temporal,
    ):
        place = Path(folder) / "project"
        project = make_project(place, {"order": ORDER}, [take, give, pay], address=temporal.address)
        async with running_worker(project) as client:
            for path in await record(client, place / "order.saga.yaml"):
                print(path.name)
