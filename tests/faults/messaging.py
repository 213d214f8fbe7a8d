"""Kafka in the fault matrix: a broker, one relay for the outboxes of all cells of a row, and their synchronization.

The cells of such a row differ only in the position of their sagas when the fault is injected, which is irrelevant to
Kafka. So they run together: four sagas stop at their positions, and one fault hits them all.
"""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.kafka_proxy import Act, KafkaProxy, Rule
from tests.helpers.processes import CommandProcess, RelayProcess, TriggerProcess
from tests.integration.messaging.trigger.trigger_environment import fully_consumed

TRANSACTION = 10.0
"""Seconds after which the broker ends a relay's transaction."""

FAST_TRANSACTION_CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Transactions that are too old are looked for every ten seconds by default."""

FAST_REBALANCE = """
"session.timeout.ms" = "6000"
"heartbeat.interval.ms" = "1000"
"""
"""The shortest that the broker allows: a consumer that was killed is missed sooner."""

START_TIMEOUT = 90.0
"""Seconds a relay may take to be ready: the one before may have left a lease."""


@dataclass
class Messaging:
    """Kafka and processes that the cells of one row share. ``proxy``, if any, is between the broker and all clients."""

    folder: Path
    broker: BrokerProcess
    proxy: KafkaProxy | None
    cells: int
    client: Mapping[str, str] = field(default_factory=dict)
    """Properties of the relay's client."""
    consumes: bool = False
    """The events have a consumer, which takes note of them."""
    sends_commands: bool = False
    """The sagas send commands, so their workers have Kafka too."""
    stale: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """By database: operations whose message comes too late for the consumer to do anything about it."""
    prefix: str = field(default_factory=lambda: f"row{uuid.uuid4().hex[:8]}")
    environments: list[CellEnvironment] = field(default_factory=list)
    processes: list[CommandProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.consumer: TriggerProcess
        self._barrier = asyncio.Barrier(self.cells)

    # --- making it ---------------------------------------------------------------------------------------------

    async def join(self, env: CellEnvironment) -> None:
        """A cell's topic, and an identity of its outbox: its database is a copy of one that all have."""
        self.environments.append(env)
        await asyncio.to_thread(self.broker.create_topic, topic_of(env))
        await env.admin("insert into channels values (%s, null, null)", topic_of(env))
        await env.admin("update saga_outbox_home set home = %s, shards = 1", env.database)

    def write_project(self) -> None:
        """The project of the relay, when all cells have joined: their databases are its outboxes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = ["actions = []", "[temporal]", f'address = "{self.environments[0].temporal.address}"']
        for env in self.environments:
            lines += [f"[connections.{env.database}]", f'url = "{env.server.url(env.database)}"']
        lines += ["[kafka]", f'bootstrap_servers = "{self.address}"', f'prefix = "{self.prefix}"']
        lines += [
            f'outbox = "{self.environments[0].database}"',
            f'transaction_timeout = "{TRANSACTION:g}s"',
            "shards = 1",
        ]
        lines += ["[kafka.client]", *(f'"{name}" = "{value}"' for name, value in self.client.items()), ""]
        (self.folder / "saga.toml").write_text("\n".join(lines), encoding="utf-8")

    @property
    def address(self) -> str:
        return self.broker.address if self.proxy is None else f"127.0.0.1:{self.proxy.port}"

    async def relay(self) -> RelayProcess:
        """Start another relay for all outboxes, and wait until it is ready."""
        relay = RelayProcess(f"relay-{len(self.processes)}", self.folder)
        self.processes.append(relay)
        await asyncio.to_thread(relay.start, START_TIMEOUT)
        return relay

    async def start_consumer(self, *, late: bool = False) -> None:
        """Start a consumer for the topics of all cells, or for those to which late messages are diverted."""
        folder = self.folder / f"notes-{len(self.processes)}"
        folder.mkdir()
        shutil.copy(self.environments[0].folder / "event_consumer.py", folder / "event_consumer.py")
        lines = ["from __future__ import annotations", "", "from event_consumer import take_notes", ""]
        for number, env in enumerate(self.environments):
            lines.append(
                f'note_{number} = take_notes("{late_topic_of(env) if late else topic_of(env)}", "{env.database}")'
            )
        (folder / "readers.py").write_text("\n".join([*lines, ""]), encoding="utf-8")
        settings = (self.folder / "saga.toml").read_text(encoding="utf-8")
        text = settings.replace("actions = []", 'actions = ["./readers.py"]') + FAST_REBALANCE
        (folder / "saga.toml").write_text(text, encoding="utf-8")
        self.consumer = TriggerProcess(f"trigger-{len(self.processes)}", folder, "--grace", "5s")
        self.processes.append(self.consumer)
        await asyncio.to_thread(self.consumer.start, START_TIMEOUT)

    async def start_reply_listener(self, env: CellEnvironment) -> TriggerProcess:
        """Start the listener for replies to a cell's commands, and the participant that sends them."""
        made = TriggerProcess(f"replies-{len(self.processes)}", env.folder, "--grace", "5s")
        self.processes.append(made)
        await asyncio.to_thread(made.start, START_TIMEOUT)
        return made

    async def fully_consumed(self, env: CellEnvironment, *, late: bool = False) -> bool:
        """True when the consumer has committed the end of the cell's topic."""
        group = f"{self.prefix}-consumer-notes-{env.database}"
        return await asyncio.to_thread(
            fully_consumed, self.broker, group, late_topic_of(env) if late else topic_of(env)
        )

    async def divert(self, env: CellEnvironment, target: Target) -> None:
        """Give the event of one operation a topic of its own: it will be read too late for anything."""
        topic = late_topic_of(env)
        await asyncio.to_thread(self.broker.create_topic, topic)
        await env.admin("insert into channels values (%s, %s, %s)", topic, target.step, target.op)
        self.stale[env.database] = {(target.step, target.op)}

    @property
    def first(self) -> CommandProcess:
        """The relay the row began with."""
        return self.processes[0]

    async def end(self) -> None:
        for process in self.processes:
            await asyncio.to_thread(process.kill)

    # --- what the cells do together ----------------------------------------------------------------------------

    async def once(self, act: Callable[[], Awaitable[object]]) -> None:
        """Wait for all cells of the row, do it once for all of them, and let them go on."""
        if await self._barrier.wait() == 0:
            await act()
        await self._barrier.wait()

    async def give_up(self) -> None:
        """A cell failed: the others must not wait for it."""
        await self._barrier.abort()

    # --- what the harness does ----------------------------------------------------------------------------------

    def catch(self, env: CellEnvironment, api: int, act: Act, holding: bytes = b"") -> Rule:
        """Catch the next request of the cell's own producer."""
        assert self.proxy is not None, "this row has no proxy"
        return self.proxy.catch(api, f"{self.prefix}-relay-{env.database}-", act, holding=holding)

    def progress_topic(self, env: CellEnvironment) -> str:
        return f"{self.prefix}-relay-{env.database}"

    async def published(self, env: CellEnvironment, timeout: float = 90.0) -> bool:
        """Wait until no event of the cell waits any more; False: some still do."""
        end = time.monotonic() + timeout
        while await env.admin("select 1 from saga_outbox where status = 'NEW' limit 1"):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.1)
        return True

    async def written(self, env: CellEnvironment) -> tuple[int, int]:
        """Events of the cell that are committed, and all that are there."""

        def counted() -> tuple[int, int]:
            committed = len(self.broker.read_committed(topic_of(env), settle=0.0))
            return committed, len(self.broker.read_uncommitted(topic_of(env)))

        return await asyncio.to_thread(counted)

    async def settled(self, env: CellEnvironment) -> bool:
        """No transaction is open in the cell's topic."""
        return await asyncio.to_thread(self.broker.is_settled, topic_of(env))


def topic_of(env: CellEnvironment) -> str:
    """Topic of the events that a cell's effects emit."""
    return f"events-{env.database}"


def late_topic_of(env: CellEnvironment) -> str:
    """Topic of the event that is to come too late."""
    return f"late-{env.database}"


def messaging(env: CellEnvironment) -> Messaging:
    """The channel of a cell that has one."""
    assert env.messaging is not None
    return env.messaging
