"""One shard of one outbox: waits for its lease, then publishes batch after batch, and starts anew after trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.kafka.errors import classify
from saga_activities.kafka.topics import KafkaProblem
from saga_activities.kafka.transactions import TransactionTrouble
from saga_workers.databases import database_says
from saga_workers.relay.holding import holding
from saga_workers.relay.lease import RENEWAL, TERM, Lease
from saga_workers.relay.mending import mend
from saga_workers.relay.outbox import Outbox, ShardState
from saga_workers.relay.pauses import Pauses
from saga_workers.relay.pipeline import Pipeline
from saga_workers.relay.progress import NewerRelay, Undecided
from saga_workers.relay.publisher import Publisher
from sagas.errors import SagaError

log = logging.getLogger("saga.relay")

DATABASE_PATIENCE = 10.0
"""Seconds a statement may take. While the marks of a batch wait, the next one's transaction is open."""

_LAST_ANSWER = 2.0
"""Seconds that a batch under way still has when the relay stops."""

P = ParamSpec("P")
T = TypeVar("T")


class Shard:
    """Publishes one shard as long as this process may."""

    def __init__(self, outbox: Outbox, number: int) -> None:
        self._outbox, self._number = outbox, number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"relay-{outbox.name}-{number}")
        self._told = outbox.states.setdefault(number, ShardState())
        self._singly: set[str] = set()
        self._watching = False
        self._name = f"{outbox.name} shard {number}"

    async def run(self) -> None:
        """Until told to stop, or once through what is new.

        Raises SagaError: a setting is refused, or (once only) Kafka refuses all we do: nobody waits for a person then.
        """
        try:
            while not self._outbox.stop.is_set():
                lease = await self._acquire()
                if lease is None and self._outbox.once and self._told.state == "standby":
                    log.info("%s: another relay publishes it", self._name)
                    return
                if lease is None:
                    await self._sleep(RENEWAL)
                    continue
                log.info("%s: this relay publishes it now", self._name)
                async with holding(self._outbox.leases, lease) as lost:
                    done = await self._serve(lease, lost)
                if done and self._outbox.once:
                    return
                if lost.is_set():
                    log.warning("%s: another relay has taken the lease; this one stands by", self._name)
                    self._say("standby")
        finally:
            self._thread.shutdown(wait=False)

    async def _acquire(self) -> Lease | None:
        try:
            async with asyncio.timeout(DATABASE_PATIENCE):
                lease = await self._outbox.leases.acquire(self._number)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._trouble(f"the database does not answer: {database_says(error)}")
            return None
        if lease is None and self._told.state != "fenced":
            self._say("standby")
        return lease

    async def _serve(self, lease: Lease, lost: asyncio.Event) -> bool:
        """One producer after the other, until the lease is lost; True: stopped, or all that was new is published."""
        pauses, fences = Pauses(0.2, 5.0), Pauses(1.0, 30.0)
        while not (lost.is_set() or self._outbox.stop.is_set()):
            watching, self._watching = self._watching, False
            publisher = Publisher(self._outbox.settings, self._outbox.home, self._number, watching=watching)
            pause = 0.0
            giving_up = asyncio.create_task(self._give_up(publisher))
            try:
                await self._publish(publisher, lost)
                return not lost.is_set()
            except TransactionTrouble as trouble:
                pause = await self._after(trouble, publisher, pauses, fences)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._trouble(f"the database does not answer: {database_says(error)}")
                pause = pauses.next()
            except SagaError as error:
                if self._outbox.once and (isinstance(error, NewerRelay) or _refused(error)):
                    raise
                self._trouble(error.message)
                pause = pauses.next()
            finally:
                giving_up.cancel()
                await self._in_thread(publisher.close)
            self._outbox.metrics.rebuilt(self._outbox.name)
            if await self._sleep(pause, lost) and self._told.state == "fenced":
                await self._look_whose(lease, lost)
        return not lost.is_set()

    async def _give_up(self, publisher: Publisher) -> None:
        """Told to stop: an answer that is under way may still come, but nobody waits for a broker that is down."""
        await self._outbox.stop.wait()
        await asyncio.sleep(_LAST_ANSWER)
        publisher.given_up.set()

    async def _publish(self, publisher: Publisher, lost: asyncio.Event) -> None:
        if self._told.state == "standby":
            self._say("starting")
        try:
            done = await self._in_thread(publisher.open)
        except Undecided as undecided:
            self._trouble(undecided.message)
            await mend(self._outbox, self._number, publisher, self._in_thread)
            done = await self._in_thread(publisher.last)
        async with asyncio.timeout(DATABASE_PATIENCE):
            found = await self._outbox.rows.mark_published([*done.before, *done.event_ids])
        if found:
            log.info("%s: %d events up to batch %d were published, and are marked now", self._name, found, done.batch)
        self._say("publishing")
        pipeline = Pipeline(self._outbox, self._number, publisher, self._in_thread, self._singly, lost)
        await pipeline.run(done.batch)

    async def _after(self, trouble: TransactionTrouble, publisher: Publisher, pauses: Pauses, fences: Pauses) -> float:
        """What follows from trouble with Kafka; returns the seconds to wait before the next producer."""
        verdict, row = trouble.verdict, trouble.about
        if verdict.fenced:
            self._outbox.metrics.fenced(self._outbox.name)
            if self._told.state != "fenced":
                log.warning("%s: fenced: %s", self._name, verdict.reason)
            self._say("fenced", "another relay has published it, or Kafka has ended a transaction of this one")
            return fences.next()
        if verdict.action == "refused" and row is not None and verdict.scope == "topic":
            if self._outbox.left_out.add(row.topic, verdict.reason):
                log.warning("%s: the topic %s is left out: %s", self._name, row.topic, verdict.reason)
            return 0.0
        if verdict.action == "refused" and row is not None and verdict.scope == "event":
            return await self._refused(trouble)
        if verdict.scope == "setting" or (self._outbox.once and verdict.scope == "client"):
            raise SagaError(f"Kafka does not let this relay publish {self._outbox.name}: {verdict.reason}")
        if not publisher.watching and (verdict.action == "abort" or verdict.scope in ("topic", "event")):
            # Some event cannot be delivered; sent again with an eye on each, it shows which one and why.
            self._watching = True
            return 0.0
        self._trouble(f"Kafka: {verdict.reason}")
        return pauses.next()

    async def _refused(self, trouble: TransactionTrouble) -> float:
        row = trouble.about
        if not trouble.alone and row.topic not in self._singly:
            # A package of several was refused; sent one by one, it shows which of them it is.
            self._singly.add(row.topic)
            return 0.0
        try:
            async with asyncio.timeout(DATABASE_PATIENCE):
                await self._outbox.rows.refuse(row.event_id, trouble.verdict.reason)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._trouble(f"the database does not answer: {database_says(error)}")
            return 1.0
        self._outbox.metrics.refused(self._outbox.name)
        log.warning("%s: event %s for %s is REFUSED: %s", self._name, row.event_id, row.topic, trouble.verdict.reason)
        return 0.0

    async def _look_whose(self, lease: Lease, lost: asyncio.Event) -> None:
        """After a fence: is the shard still ours?"""
        try:
            async with asyncio.timeout(TERM):
                if not await self._outbox.leases.renew(lease):
                    lost.set()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._trouble(f"the database does not answer: {database_says(error)}")

    async def _sleep(self, seconds: float, lost: asyncio.Event | None = None) -> bool:
        """Wait, but not longer than this shard may work; False: it was cut short."""
        events = [self._outbox.stop] + ([lost] if lost is not None else [])
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not done

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: call(*args, **kwargs))

    def _say(self, state: str, reason: str = "") -> None:
        if self._told.state == "trouble" and state == "publishing":
            log.info("%s: publishing again", self._name)
        self._told.state, self._told.reason = state, reason  # pyright: ignore[reportAttributeAccessIssue]

    def _trouble(self, sentence: str) -> None:
        """Logged when it begins and when it changes, not at every try."""
        if (self._told.state, self._told.reason) != ("trouble", sentence):
            log.warning("%s: %s", self._name, sentence)
        self._say("trouble", sentence)


def _refused(error: SagaError) -> bool:
    """Kafka says no to something that only a person can change."""
    failure = error.failure if isinstance(error, KafkaProblem) else None
    return failure is not None and classify(failure).action == "refused"
