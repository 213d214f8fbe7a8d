"""Faults that people make, at the worst moment: cancel, terminate, start twice (cells 24, 25, 31)."""

from __future__ import annotations

import asyncio
import json

import pytest
from temporalio.client import Client as Temporal

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from sagas.errors import RefusedError
from tests.faults.cell_environment import Stage, default_input
from tests.faults.cells import PREVIOUS, TARGETS
from tests.faults.injection.fault_participant import saga

ANSWERS = {TARGETS["B"]: "accepted", TARGETS["P"]: "recorded", TARGETS["C"]: "already"}


async def cancelled(stage: Stage) -> None:
    """Cancel while the attempt is in flight, twice; past the pivot it is refused."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await _cancel(stage)
    stage.fault_is_over()


async def cancelled_and_refused(stage: Stage) -> None:
    """A cancel is recorded while the pivot is in flight, and then the pivot fails."""
    await stage.conduct(stage.target, "reject")
    await cancelled(stage)


async def _cancel(stage: Stage) -> None:
    if stage.target == TARGETS["A"]:
        with pytest.raises(RefusedError, match="point of no return"):
            await stage.cancel()
        return
    assert await stage.cancel() == ANSWERS[stage.target]
    assert await stage.cancel() == "already"


async def cancelled_natively(stage: Stage) -> None:
    """Temporal's own cancel, as a person gives it in the Web UI."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await stage.handle.cancel()
        await asyncio.sleep(0.3)
    stage.fault_is_over()


async def cancelled_before_first_task(stage: Stage) -> None:
    """Started and cancelled before any worker has seen it."""
    await stage.start()
    await stage.handle.cancel()
    stage.fault_is_over()
    await stage.worker()


async def cancelled_as_it_completes(stage: Stage) -> None:
    """The cancel and the end of the attempt come at the same instant.

    The next step waits for the cancel's answer: on a slow machine the saga would else pass its pivot first.
    """
    worker = await stage.worker()
    async with stage.gate("effect", PREVIOUS[TARGETS["P"]]), stage.gate("commit") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await asyncio.gather(stage.cancel(), gate.open())
    stage.fault_is_over()


async def terminated(stage: Stage) -> None:
    """Temporal's terminate runs no code of ours; `saga list --stuck` finds it."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await stage.handle.terminate("the test's operator")
    await stage.effect_is_there()
    stage.fault_is_over()

    async def found() -> bool:
        code, said = await saga(stage, "list", "--stuck", "-o", "json")
        assert code == 0, said
        return any(one["id"] == stage.saga_id and one["state"] == "TERMINATED" for one in json.loads(said))

    await stage.until(found, "the terminated saga in `saga list --stuck`")


async def started_again(stage: Stage) -> None:
    """Five starts at once and one after the end are one saga; another input under its id is refused."""
    client = await stage.client()
    await stage.worker()
    stage.fault_is_over()
    runs = await asyncio.gather(*(client.start("transfer", default_input(), id=stage.saga_id) for _ in range(5)))
    assert len({run.run_id for run in runs}) == 1
    assert [run.started for run in runs].count(True) <= 1  # a retried request may have lost its first answer
    await stage.finished()
    assert not (await client.start("transfer", default_input(), id=stage.saga_id)).started
    with pytest.raises(RefusedError, match="another input"):
        await client.start("transfer", {"customer": "somebody else"}, id=stage.saga_id)


async def start_unanswered(stage: Stage) -> None:
    """P0: the start is carried out and its answer gets lost; the caller starts again."""
    proxy = stage.proxies["temporal"]
    direct = await stage.client()
    cut = Client(await Temporal.connect(f"127.0.0.1:{proxy.port}", interceptors=[HeaderInterceptor()]), direct.project)
    await cut.search_attributes()
    proxy.blackhole_to_client = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cut.start("transfer", default_input(), id=stage.saga_id), 1)
    proxy.blackhole_to_client = False
    run = await direct.start("transfer", default_input(), id=stage.saga_id)
    assert not run.started
    proxy.cut()
    stage.fault_is_over()
    await stage.worker()
