"""Ways to kill a process in the middle of something, from outside: each waits for its moment, not for luck.

Each starts the saga with ``start`` and kills the process of this name while the saga is under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import psutil

from tests.helpers.waiting import until_blocking
from tests.integration.messaging.trigger.trigger_environment import committed
from tests.patterns.stage import Stage

Start = Callable[[], object]


def while_locked(stage: Stage, process: str, start: Start, where: tuple[str, str]) -> None:
    """A transaction waits for rows that a query of ours has locked: killed before its commit."""
    connection, query = where
    with stage.connect(connection) as holder, stage.connect(connection) as observer:
        holder.execute(cast("Any", query))
        observer.autocommit = True
        start()
        waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        until_blocking(
            lambda: observer.execute(waiting).fetchone(), f"a transaction that waits for the rows of {query!r}"
        )
        stage.processes[process].kill()


def while_frozen(stage: Stage, process: str, start: Start, service: str) -> None:
    """A frozen service has the request: it handles it when nobody hears the answer any more."""
    frozen = stage.processes[service]
    frozen.freeze()
    start()
    worker = psutil.Process(stage.processes[process].pid)

    def is_asked() -> bool:
        remotes = [socket.raddr for socket in worker.net_connections() if socket.status == psutil.CONN_ESTABLISHED]
        return any(remote and remote.port in stage.service_ports for remote in remotes)

    until_blocking(is_asked, f"a request to {service}")
    stage.processes[process].kill()
    frozen.thaw()


def while_transaction_is_open(stage: Stage, process: str, start: Start, topic: str) -> None:
    """A transaction of Kafka has written to the topic and is not committed: the process is stepped until then."""
    running = stage.processes[process]
    start()

    def step() -> bool:
        running.thaw()
        time.sleep(0.002)
        running.freeze()
        return not stage.broker.is_settled(topic)

    until_blocking(step, f"an open transaction in {topic}", pause=0.0)
    running.kill()


def before_offset(stage: Stage, process: str, start: Start, event: tuple[str, Sequence[str]]) -> None:
    """Events have started the first of these sagas, and the offset of the last event is not committed."""
    topic, sagas = event
    start()
    until_blocking(lambda: any(stage.was_started(saga) for saga in sagas), "the saga of an event")
    stage.processes[process].kill()
    group = f"{stage.env['SAGA_KAFKA__PREFIX']}-trigger-{stage.pattern.name}-{topic}"
    ends = {partition: high for partition, (_, high) in stage.broker.offsets(topic).items() if high}
    assert committed(stage.broker, group, topic) != ends, "the offsets of all events were committed"


KILLS: Mapping[str, Callable[[Stage, str, Start, Any], None]] = {
    "locked": while_locked,
    "frozen": while_frozen,
    "transaction": while_transaction_is_open,
    "offset": before_offset,
}
