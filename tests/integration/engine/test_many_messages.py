"""Any number of messages to a saga that waits does not bring its run to the size at which Temporal terminates it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas import Rejected
from sagas.errors import RefusedError
from sagas.machine import operator_record
from sagas.workflow import limits
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, open_environment
from tests.integration.engine.nested.families import nested
from tests.integration.engine.test_continue_as_new import runs
from tests.replay.scenario import EARLY

PARKED = """
    saga: asks
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: work, compensate: unwork, on_failure: park}
"""
COMMITTED = """
    saga: asks
    steps:
      - {id: a, uses: book, pivot: true}
      - {id: b, uses: work, on_failure: park}
"""
WAITS = """
    saga: waits
    steps:
      - {id: go, uses: wait, with: {signal: go}}
"""
PARENT = f"""
    saga: parent
    steps:
      - {{id: a, uses: book, pivot: true}}
      - {nested("inner", "waits")}
"""


ENCRYPTED = RawValue(
    Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"invented"}, data=b"0" * 40)
)


@pytest.fixture(scope="module")
def early_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server that suggests a new run after some dozens of events."""
    server = TemporalServer(tmp_path_factory.mktemp("many-messages"), extra=[EARLY]).start()
    yield server
    server.kill()


@pytest.fixture
async def env(early_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    environment = await open_environment(tmp_path, early_server.address)
    yield environment
    await environment.engine.dispose()


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("message", ["pause", "cancel", "unreadable signal", "encrypted signal", "report"])
async def test_messages_that_change_nothing_continue_the_run(env: Environment, message: str) -> None:
    env.plan["do b"] = [Rejected("ask somebody"), "done"]
    async with env.serving(COMMITTED) as client:
        saga = await begin(client, "asks")
        assert (await finished(client, saga))["state"] == "PARKED"
        for _ in range(30):
            match message:
                case "pause":
                    await client.pause(saga, who="mia")
                    await client.resume(saga, who="mia")
                case "cancel":
                    assert await handle(client, saga).execute_update("cancel") == "past the point of no return"
                case "report":
                    await handle(client, saga).signal("saga-parked", {"no": "report"})
                case "encrypted signal":
                    await handle(client, saga).signal("other", ENCRYPTED)
                case _:
                    await handle(client, saga).signal("other", args=[1, 2])
            await client.view(saga)

        async def continued() -> bool:
            return await runs(client, saga) > 1

        await until(continued)
        view = await client.view(saga)
        assert (view.state, len(view.operator)) == ("PARKED", 60 if message == "pause" else 0)
        await client.resolve(saga, {"step": "b", "decision": "retry", "reason": "x", "who": "ada"})
        assert (await finished(client, saga))["state"] == "COMPLETED"


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_saga_is_paused_only_so_often(env: Environment) -> None:
    env.plan["do b"] = [Rejected("ask somebody"), "done"]
    async with env.serving(PARKED) as client:
        saga = await begin(client, "asks")
        assert (await finished(client, saga))["state"] == "PARKED"
        for _ in range(operator_record.MAX_PAUSES):
            await client.pause(saga, who="mia")
            await client.resume(saga, who="mia")
        with pytest.raises(RefusedError, match="has been paused 500 times, which is the most"):
            await client.pause(saga, who="mia")
        size = (await handle(client, saga).describe()).raw_description.workflow_execution_info.history_size_bytes
        assert size < 4 * 1024 * 1024
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"


async def test_long_reasons_are_not_recorded_without_end(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_record, "MAX_RECORD_CHARACTERS", 20_000)
    env.plan["do b"] = [Rejected("ask somebody")]
    async with env.serving(PARKED) as client:
        saga = await begin(client, "asks")
        await finished(client, saga)
        await client.pause(saga, who="mia", reason="x" * 30_000)
        await client.resume(saga, who="mia", reason="y" * 12_000)
        await client.pause(saga, who="mia", reason="z" * 12_000)
        await client.resume(saga, who="mia")
        refused = "have 24,.* characters, and neither a pause nor a retry is taken beyond 20,000"
        with pytest.raises(RefusedError, match=refused):
            await client.pause(saga, who="mia")
        with pytest.raises(RefusedError, match=refused):
            await client.resolve(saga, {"step": "b", "decision": "retry", "reason": "x", "who": "ada"})
        await client.resolve(saga, {"step": "b", "decision": "skip", "reason": "x", "who": "ada"})
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_full_history_takes_no_pause(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a nested saga does not continue as new."""
    async with env.serving(PARENT, WAITS) as client:
        saga = await begin(client, "parent")

        async def nested_runs() -> bool:
            return any(child.state == "RUNNING" for child in (await client.view(saga)).children)

        await until(nested_runs)
        for _ in range(6):
            await client.pause(saga, who="mia")
            await client.resume(saga, who="mia")
        assert await runs(client, saga) == 1
        monkeypatch.setattr(limits, "HISTORY_LIMIT", 40)
        with pytest.raises(RefusedError, match="no more pauses of this saga: the history of its run has"):
            await client.pause(saga, who="mia")
        refused = r"no more cancels of this saga: .*; a cancel would change nothing \(past the point of no return\)"
        with pytest.raises(RefusedError, match=refused):
            await client.cancel(saga)
        await client.signal(f"{saga}/inner", "go", {})
        assert (await finished(client, saga))["state"] == "COMPLETED"
