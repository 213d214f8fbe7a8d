"""The ledger of a project as its commands and workers use it: the outcomes of sagas after Temporal has deleted them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.ledger.records import (
    Claim,
    KnownSaga,
    NewClaim,
    OutcomeCount,
    RunFilter,
    RunRecord,
    RunRow,
    SingleClaim,
)
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.portions import in_portions
from sagas.protocol.access_view import Access, AccessView
from sagas.protocol.payloads import to_packed_text
from sagas.protocol.standing_pause import PauseKind, StandingPause
from sagas.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from saga_activities.ledger.audit import Decoded

SETTLE_TIME = 2.0
"""Seconds after which the end of a saga is in the ledger: a claim, or a missing row, that is still there is a
finding."""

_POOL_SIZE = 5
_IDS_AT_ONCE = 500


class LedgerUnavailable(SagaError):
    """The ledger cannot be read."""


class RunLedger:
    """The rows of ``[ledger] connection``. Every method raises LedgerUnavailable if the database does not answer.

    Any client may start a run under any id: of one that no row can have, the ledger knows nothing, and asks nothing,
    because a database may refuse to read it.

    ``open`` makes its engine at the first use. Without its URL, as while the embedded PostgreSQL is down, the ledger
    does not answer either: Temporal knows the sagas that run.
    """

    configured = True
    """True if the project has a ledger."""

    def __init__(self, connection: str, open: Callable[[], AsyncEngine]) -> None:
        self._connection = connection
        self._open = open
        self._id: str | None = None

    @cached_property
    def _sql(self):
        """The module of its statements, which brings SQLAlchemy: most commands ask no ledger."""
        from saga_workers.ledger import ledger_sql

        return ledger_sql

    def require(self) -> None:
        """Raises UsageError in a project without a ledger, for what cannot be done without one."""

    @cached_property
    def engine(self) -> AsyncEngine:
        """Raises UsageError if its URL is missing or cannot be used."""
        return self._open()

    async def identity(self) -> str:
        """The short id of this ledger, the same for all processes that use it; empty without one."""
        if self._id is None:
            with self._readable():
                self._id = await self._sql.identity.read_ledger_id(self.engine)
        return self._id

    async def find(self, saga_id: str) -> RunRow | None:
        """The newest row of this id; None if there is none."""
        if not fits_guard_key(saga_id):
            return None
        with self._readable():
            return await self._sql.rows.read_run(self.engine, saga_id)

    async def find_story(
        self, saga_id: str, *, saga: str, generation: int, input_digest: str | None, root_start: str = ""
    ) -> RunRow | None:
        """The newest row of this id that is of this saga, this generation and, as far as known, this input and this
        root saga: another saga may have run under the id since. None if there is none.
        """
        if not fits_guard_key(saga_id):
            return None
        with self._readable():
            return await self._sql.rows.read_story(
                self.engine,
                saga_id,
                saga=saga,
                generation=generation,
                input_digest=input_digest,
                root_start=root_start,
            )

    async def find_all(self, saga_ids: Sequence[str]) -> dict[str, RunRow]:
        """The newest row of each id that has one."""
        runs: dict[str, RunRow] = {}
        with self._readable():
            for part in _storable_parts(saga_ids):
                runs |= await self._sql.rows.read_runs(self.engine, part)
        return runs

    async def claims(self, saga_ids: Sequence[str]) -> dict[str, Claim]:
        """The claim of each id that has one: its saga is about to start, or runs."""
        claimed: dict[str, Claim] = {}
        with self._readable():
            for part in _storable_parts(saga_ids):
                claimed |= await self._sql.claims.read_claims(self.engine, part)
        return claimed

    async def machine(self, saga_id: str) -> str | None:
        """The state from which the saga can be undone, as :func:`sagas.protocol.payloads.pack_state` writes it."""
        if not fits_guard_key(saga_id):
            return None
        with self._readable():
            compressed = await self._sql.rows.read_machine(self.engine, saga_id)
        return None if compressed is None else to_packed_text(compressed)

    async def states(self, saga_ids: Sequence[str]) -> dict[str, str]:
        """The state of each id that has a row."""
        states: dict[str, str] = {}
        with self._readable():
            for part in _storable_parts(saga_ids):
                states |= await self._sql.rows.read_states(self.engine, part)
        return states

    async def known_sagas(self, saga_ids: Sequence[str]) -> dict[str, KnownSaga]:
        """Return those of these ids that exist already, as a row or as the claim of a bulk workflow."""
        with self._readable():
            return await self._sql.batches.read_known(self.engine, [id for id in saga_ids if fits_guard_key(id)])

    async def count_batch(self, batch: str) -> dict[str, int]:
        """How many sagas with the label ``batch`` are in each state."""
        with self._readable():
            return await self._sql.batches.count_states(self.engine, batch)

    async def running_in_bulk(self, batch: str) -> builtins.list[str]:
        """The ids of the sagas with the label ``batch`` that bulk workflows run now."""
        with self._readable():
            return await self._sql.batches.running_in_bulk(self.engine, batch)

    async def list(self, criteria: RunFilter, limit: int) -> builtins.list[RunRow]:
        """The newest rows that match."""
        with self._readable():
            return await self._sql.rows.list_runs(self.engine, criteria, limit)

    async def outcomes(self, since: datetime, saga: str | None) -> builtins.list[OutcomeCount]:
        """The sagas that began since then and have ended, by name and state."""
        with self._readable():
            return await self._sql.period.count_outcomes(self.engine, since, saga)

    async def slowest(self, since: datetime, saga: str | None, limit: int) -> builtins.list[RunRow]:
        """The ended sagas of the period that took longest, the slowest first."""
        with self._readable():
            return await self._sql.period.slowest_runs(self.engine, since, saga, limit)

    async def open_members(self, since: datetime, saga: str | None) -> dict[str, int]:
        """The sagas that bulk workflows have claimed since then and run now, by name."""
        with self._readable():
            return await self._sql.period.count_open_members(self.engine, since, saga)

    async def bulk_claim(self, saga_id: str) -> Claim | None:
        """The claim of the bulk workflow that runs this saga; None if none does."""
        if not fits_guard_key(saga_id):
            return None
        with self._readable():
            claim = await self._sql.claims.read_claim(self.engine, saga_id)
        return None if claim is None or claim.bulk_id is None else claim

    async def claim_single(self, new: NewClaim, saga: str) -> SingleClaim:
        """Claim an id for a saga with a workflow of its own."""
        with self._readable():
            return await self._sql.claims.claim_single(self.engine, new, saga=saga)

    async def release_single(self, saga_id: str, at: datetime) -> None:
        """Give up a claim that was made ``at`` this time."""
        with self._readable():
            await self._sql.claims.release_single(self.engine, saga_id, at=at)

    async def release_unstarted(self, claim: Claim) -> None:
        """Delete the claim of a saga that had not begun when its bulk workflow was closed."""
        with self._readable():
            await self._sql.claims.release_unstarted(self.engine, claim)

    async def bulk_ids(self) -> builtins.list[str]:
        """The bulk workflows that have claims."""
        with self._readable():
            return await self._sql.claims.list_bulk_ids(self.engine)

    async def oldest_bulk_claim(self) -> datetime | None:
        """When the oldest claim of a bulk workflow was made; None if there is none."""
        with self._readable():
            return await self._sql.claims.oldest_bulk_claim(self.engine)

    async def bulk_claims(
        self, criteria: RunFilter, limit: int, bulk_ids: Collection[str] | None = None
    ) -> builtins.list[Claim]:
        """The newest claims of bulk workflows that match; ``states`` of the filter do not count.

        ``bulk_ids``: only those of these workflows.
        """
        with self._readable():
            return await self._sql.claims.list_claims(self.engine, criteria, limit, bulk_ids)

    async def oldest_single_claims(self, min_age: timedelta, limit: int) -> builtins.list[str]:
        """The ids of sagas with workflows of their own that were claimed this long ago and have not ended."""
        with self._readable():
            return await self._sql.claims.oldest_single_claims(self.engine, min_age, limit)

    async def pauses(self) -> builtins.list[StandingPause]:
        """The standing pauses of connections and of the sagas of a name."""
        with self._readable():
            return await self._sql.pauses.read_pauses(self.engine)

    async def begin_pause(self, kind: PauseKind, name: str, *, who: str, reason: str | None) -> bool:
        """Begin a standing pause; False if there is one already, which stays as it is."""
        with self._readable():
            return await self._sql.pauses.begin_pause(self.engine, kind, name, who=who, reason=reason)

    async def end_pause(self, kind: PauseKind, name: str) -> bool:
        """End a standing pause; False if there is none."""
        with self._readable():
            return await self._sql.pauses.end_pause(self.engine, kind, name)

    async def open_breakers(self) -> builtins.list[StandingPause]:
        """The circuit breakers of connections that are open."""
        with self._readable():
            return [breaker.pause for breaker in await self._sql.circuit_breakers.read_breakers(self.engine)]

    async def close_breaker(self, connection: str) -> bool:
        """Close the circuit breaker of a connection; False if it is closed."""
        with self._readable():
            return await self._sql.circuit_breakers.close_breaker_of(self.engine, connection)

    async def record_access(
        self, saga_id: str, what: Access, *, who: str, reason: str | None, detail: str | None = None
    ) -> int:
        """Record that somebody is about to see the sensitive values of a saga in clear, or to operate it; the number of
        the record.
        """
        with self._readable():
            return await self._sql.audit.record_access(
                self.engine, saga_id, what, who=who, reason=reason, detail=detail
            )

    async def record_outcome(self, number: int, outcome: str) -> None:
        """Add the answer to the request of an operator that has this record."""
        with self._readable():
            await self._sql.audit.record_outcome(self.engine, number, outcome)

    async def accesses(self, saga_id: str) -> builtins.list[AccessView]:
        """The newest records of who has seen the sensitive values of a saga or has operated it, in their order."""
        if "\0" in saga_id:
            return []
        with self._readable():
            return await self._sql.audit.read_accesses(self.engine, saga_id)

    async def decoded(self, age: timedelta) -> builtins.list[Decoded]:
        """The payloads that tokens of `saga serve` have had decoded within this time."""
        with self._readable():
            return await self._sql.audit.read_decoded(self.engine, age)

    async def is_forgetting(self, saga_id: str, since: datetime | None = None) -> bool:
        """True while the sensitive values of the saga are being forgotten. ``since``: when it was started."""
        with self._readable():
            return await self._sql.audit.is_forgetting(self.engine, saga_id, since)

    async def was_forgotten(self, saga_id: str, since: datetime | None = None) -> bool:
        """True if the sensitive values of the saga were replaced everywhere before. ``since``: when it was started."""
        with self._readable():
            return await self._sql.audit.was_forgotten(self.engine, saga_id, since)

    async def forget(self, saga_ids: Sequence[str], sensitive: frozenset[str]) -> int:
        """Delete the states for an undo of these sagas, and mask these values; the number of rows that had any."""
        with self._readable():
            return await self._sql.forgetting.delete_values(self.engine, saga_ids, sensitive)

    async def bulk_workflows_of(self, saga_id: str) -> set[str]:
        """The bulk workflows in which generations of this saga have ended, or that have claimed it."""
        if not fits_guard_key(saga_id):
            return set()
        with self._readable():
            return await self._sql.forgetting.bulk_workflows_of(self.engine, saga_id)

    async def begin_forgetting(
        self, saga_ids: Sequence[str], *, who: str, reason: str | None, not_before: datetime | None = None
    ) -> builtins.list[int]:
        """Record that the values of these sagas are about to be forgotten; the numbers of the records.

        ``not_before``: when the saga has ended.
        """
        with self._readable():
            return await self._sql.audit.begin_forgetting(
                self.engine, saga_ids, who=who, reason=reason, not_before=not_before
            )

    async def withdraw_forgetting(self, ids: Sequence[int]) -> None:
        """Delete the records of :meth:`begin_forgetting`: nothing was forgotten."""
        with self._readable():
            await self._sql.audit.withdraw_forgetting(self.engine, ids)

    async def begun_forgetting(self, saga_id: str, since: datetime | None = None) -> AccessView | None:
        """The newest record that the values of a saga are forgotten, or being forgotten; None if there is none.

        ``since``: when the saga was started.
        """
        with self._readable():
            return await self._sql.audit.begun_forgetting(self.engine, saga_id, since)

    async def complete_forgetting(self, saga_ids: Sequence[str]) -> None:
        """Record that the values of these sagas were replaced everywhere that they can be."""
        with self._readable():
            await self._sql.audit.complete_forgetting(self.engine, saga_ids)

    async def write(self, records: Sequence[RunRecord]) -> None:
        """Insert or update rows; a later state is kept."""
        with self._readable():
            await self._sql.claims.record(self.engine, records)

    async def close(self) -> None:
        if "engine" in vars(self):
            await self.engine.dispose()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            reason = f"the ledger in {self._connection} cannot be read: {error.message}"
            raise LedgerUnavailable(reason, help=error.help) from error
        except self._sql.MissingRowKey as error:
            reason = f"a state in the ledger in {self._connection} cannot be read: {error}"
            raise LedgerUnavailable(reason, help="set [codec] key in saga.toml as the workers have it") from error
        except self._sql.ChangedRow as error:
            raise RefusedError(f"a state in the ledger in {self._connection} cannot be read: {error}") from error
        except self._sql.DataError as error:
            raise UsageError(
                f"the ledger in {self._connection} refuses a value: {self._sql.driver_message(error)}"
            ) from error
        except (self._sql.SQLAlchemyError, OSError, TimeoutError) as error:
            raise LedgerUnavailable(
                f"the ledger in {self._connection} does not answer: {self._sql.driver_message(error)}"
            ) from error


def _storable_parts(saga_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids that a row can have, in parts for one query each."""
    return in_portions([id for id in saga_ids if fits_guard_key(id)], _IDS_AT_ONCE)


class NoLedger(RunLedger):
    """The ledger of a project without ``[ledger]``: it knows nothing, and keeps nothing."""

    configured = False

    def __init__(self) -> None:
        super().__init__("", _open_nothing)

    def require(self) -> NoReturn:
        raise UsageError(
            "bulk execution needs a ledger, which keeps the states of its sagas",
            help="set [ledger] connection in saga.toml, and run saga setup",
        )

    async def identity(self) -> str:
        return ""

    async def pauses(self) -> builtins.list[StandingPause]:
        return []

    async def begin_pause(self, kind: PauseKind, name: str, *, who: str, reason: str | None) -> bool:
        raise _no_pauses()

    async def end_pause(self, kind: PauseKind, name: str) -> bool:
        raise _no_pauses()

    async def open_breakers(self) -> builtins.list[StandingPause]:
        return []

    async def close_breaker(self, connection: str) -> bool:
        raise _no_pauses()

    async def find_story(
        self, saga_id: str, *, saga: str, generation: int, input_digest: str | None, root_start: str = ""
    ) -> RunRow | None:
        return None

    async def find(self, saga_id: str) -> RunRow | None:
        return None

    async def find_all(self, saga_ids: Sequence[str]) -> dict[str, RunRow]:
        return {}

    async def claims(self, saga_ids: Sequence[str]) -> dict[str, Claim]:
        return {}

    async def machine(self, saga_id: str) -> str | None:
        return None

    async def states(self, saga_ids: Sequence[str]) -> dict[str, str]:
        return {}

    async def known_sagas(self, saga_ids: Sequence[str]) -> dict[str, KnownSaga]:
        return {}

    async def count_batch(self, batch: str) -> dict[str, int]:
        return {}

    async def running_in_bulk(self, batch: str) -> builtins.list[str]:
        return []

    async def list(self, criteria: RunFilter, limit: int) -> builtins.list[RunRow]:
        return []

    async def bulk_claim(self, saga_id: str) -> Claim | None:
        return None

    async def claim_single(self, new: NewClaim, saga: str) -> SingleClaim:
        return SingleClaim(made_at=None, held=None, row=None)

    async def accesses(self, saga_id: str) -> builtins.list[AccessView]:
        return []

    async def begun_forgetting(self, saga_id: str, since: datetime | None = None) -> AccessView | None:
        return None

    async def is_forgetting(self, saga_id: str, since: datetime | None = None) -> bool:
        return False

    async def bulk_ids(self) -> builtins.list[str]:
        return []

    async def oldest_bulk_claim(self) -> datetime | None:
        return None

    async def bulk_claims(
        self, criteria: RunFilter, limit: int, bulk_ids: Collection[str] | None = None
    ) -> builtins.list[Claim]:
        return []

    async def oldest_single_claims(self, min_age: timedelta, limit: int) -> builtins.list[str]:
        return []


def _no_pauses() -> UsageError:
    return UsageError(
        "the pause of a connection, or of all sagas of a name, needs a ledger, which keeps it for all workers",
        help="set [ledger] connection in saga.toml, and run saga setup; --where pauses the sagas that run now",
    )


def _open_nothing() -> NoReturn:
    raise AssertionError("a project without a ledger has written to it")


def open_ledger(settings: Settings) -> RunLedger:
    """The ledger of the project. Nothing is connected before the first use."""
    name = settings.ledger.connection
    if name is None:
        return NoLedger()
    connection = settings.sql_connection(name)

    def open() -> AsyncEngine:
        from saga_activities.connections import open_engine
        from saga_activities.guard.stored_values import stored_values_of
        from saga_workers.runtime.lock_waits import limit_lock_waits

        values = stored_values_of(connection)
        engine = open_engine(name, connection.url, _POOL_SIZE, connection.trusted_roles, values)
        limit_lock_waits(engine)
        return engine

    return RunLedger(name, open)


@asynccontextmanager
async def using_ledger(settings: Settings) -> AsyncIterator[RunLedger]:
    """Open the ledger of the project for the time of the block."""
    ledger = open_ledger(settings)
    try:
        yield ledger
    finally:
        await ledger.close()
