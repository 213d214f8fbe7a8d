"""The traces of a saga in the databases of a project: its rows in the guards, its commands, and what it holds there.

These outlive its run in Temporal, which may have been deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.entry_key import PARTICIPANT_PREFIX, fits_guard_key
from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.result_codec import MARKER_KEY, decode_marker
from saga_activities.guard.rules import CONFIRMED, ELSEWHERE
from saga_activities.guard.stored_values import StoredValues, stored_values_of
from saga_activities.guard.tables import guard_table, request_table, row_lock_table
from saga_activities.guard.two_phase.prepared import list_prepared
from saga_activities.guard.unreadable_rows import ChangedRow, UnreadableRow
from saga_activities.locks.tables import lock_table
from saga_activities.messaging.kafka_request import DONE
from saga_activities.messaging.outbox import HELD
from saga_activities.table_names import table_names
from saga_activities.value_places import ValuePlace, origin_place, request_place
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.database_identity import TableReaders
from saga_workers.runtime.databases import open_command_engine
from sagas.builtins.messaging import REQUEST
from sagas.errors import SagaError
from sagas.portions import in_portions
from sagas.protocol.origin import Origin, decode_origin, may_equal, same_owner
from sagas.protocol.payloads import NOTIFICATION_PREFIX, entry_id
from sagas.settings import Settings, SqlConnection
from sagas.text.shortening import join_names

MAX_SAGAS = 1_000
"""Sagas of one table that are looked up in Temporal: those that hold something are few."""

_SAGAS_AT_ONCE = 500
_MAX_NESTED = 100
_TIMEOUT = 15.0
_EFFECT_ROWS = sa.select(
    *(guard_table.c[name] for name in ("saga_id", "step", "generation", "op", "reason", "origin", "created_at")),
    # Results of steps may be large, and tell nothing here.
    sa.case((guard_table.c.op == "undo", guard_table.c.result)).label("result"),
)
_COMMAND_ROWS = sa.select(
    *(
        request_table.c[name]
        for name in ("step_key", "saga_id", "step", "generation", "op", "outcome", "origin", "created_at")
    )
)

Command = Literal["sent", "done"]
"""``sent``: no reply has been recorded, so its effect may be there. ``done``: its participant says that it is there."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """An entry of a saga in the guard of a connection, or its ``command`` to a Kafka participant. ``open``: its effect
    is there, or may be there, and is not undone. ``confirmed``: so is its confirm, which no saga makes before its
    commit point.

    ``undo_elsewhere``: its undo is decided, but no guard tells whether the action in another database or service ran.
    ``undone``: the action that undoes it has a row of its own, or the reply to the command that undoes it says so. Of
    an entry that was done outside of the guards there may be its undo or its confirm alone.
    ``is_undoing``: the command that undoes it was sent, and no reply to that has been recorded.
    ``shared_with``: the other connections that lead to the same guard.
    """

    connection: str
    entry: str
    generation: int
    open: bool
    undo_elsewhere: bool
    origin: Origin | None
    created_at: float
    confirmed: bool = False
    command: Command | None = None
    is_undoing: bool = False
    undone: bool = False
    shared_with: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.entry} on {self.connection}" if self.command is None else f"{self.entry} by {REQUEST}"


async def recorded_effects(settings: Settings, saga_id: str) -> list[RecordedEffect]:
    """The effects of a saga of which the guards of all connections and its commands tell, the oldest first. Raises
    SagaError.
    """
    return (await effects_of_sagas(settings, [saga_id]))[saga_id]


async def effects_of_sagas(settings: Settings, saga_ids: Sequence[str]) -> dict[str, list[RecordedEffect]]:
    """The :func:`recorded_effects` of each saga."""
    rows: dict[str, list[tuple[str, Any]]] = {id: [] for id in saga_ids}
    commands: dict[str, list[tuple[str, Any]]] = {id: [] for id in saga_ids}
    values: dict[str, StoredValues] = {}
    readers = TableReaders()
    asked = [id for id in rows if fits_guard_key(id)]
    for connection in settings.sql_connections() if asked else ():
        async with reading_tables(connection, "the guard") as (engine, tables):
            values[connection.name] = stored_values_of(connection)
            async with engine.connect() as database:
                if guard_table.name in tables:
                    own = await _read_rows(database, connection.name, _EFFECT_ROWS, guard_table, asked)
                    if any(own.values()) and not await readers.is_read(connection.name, engine, guard_table.name):
                        _add_rows(rows, own)
                if connection.name == settings.kafka.outbox and request_table.name in tables:
                    own = await _read_rows(database, connection.name, _COMMAND_ROWS, request_table, asked)
                    _add_rows(commands, own)
    effects_of: dict[str, list[RecordedEffect]] = {}
    for id in rows:
        effects = [*_effects_in(rows[id], values), *_commands_in(commands[id], rows[id], values)]
        done = {(effect.entry, effect.generation) for effect in effects}
        effects += _ends_elsewhere(rows[id], commands[id], values, done)
        shared = [replace(each, shared_with=tuple(readers.others.get(each.connection, ()))) for each in effects]
        effects_of[id] = sorted(_resolved(shared), key=lambda effect: effect.created_at)
    return effects_of


def _resolved(effects: Sequence[RecordedEffect]) -> list[RecordedEffect]:
    """The effects of a saga, with the origin itself where there is a reference to one that a row has."""
    whole = {
        effect.origin.start: effect.origin for effect in effects if effect.origin is not None and effect.origin.is_whole
    }

    def resolved(origin: Origin) -> Origin:
        return replace(whole.get(origin.start, origin), ledger=origin.ledger)

    return [each if each.origin is None else replace(each, origin=resolved(each.origin)) for each in effects]


async def _read_rows(
    database: AsyncConnection,
    connection: str,
    query: sa.Select[Any],
    table: sa.Table,
    saga_ids: Sequence[str],
) -> dict[str, list[tuple[str, Any]]]:
    """The rows of these sagas, each with the name of its connection."""
    rows: dict[str, list[tuple[str, Any]]] = {id: [] for id in saga_ids}
    for portion in in_portions(saga_ids, _SAGAS_AT_ONCE):
        for row in await database.execute(query.where(table.c.saga_id.in_(portion))):
            if row.saga_id in rows:  # a collation may find others
                rows[row.saga_id].append((connection, row))
    return rows


def _add_rows(to: Mapping[str, list[tuple[str, Any]]], rows: Mapping[str, Sequence[tuple[str, Any]]]) -> None:
    for id, own in rows.items():
        to[id].extend(own)


async def nested_sagas(settings: Settings, saga_id: str) -> list[str]:
    """The ids of up to some sagas that are nested in this one, and of which a guard or a command tells. Raises
    SagaError.
    """
    ids: set[str] = set()
    for connection in settings.sql_connections():
        async with reading_tables(connection, "the guard") as (engine, tables):
            for table in (guard_table, request_table):
                if table.name in tables:
                    nested = table.c.saga_id.startswith(f"{saga_id}/", autoescape=True)
                    of_participant = table.c.step.startswith(PARTICIPANT_PREFIX, autoescape=True)
                    query = sa.select(table.c.saga_id).where(nested, ~of_participant).distinct().limit(_MAX_NESTED)
                    async with engine.connect() as database:
                        ids.update((await database.execute(query)).scalars())
    return sorted(id for id in ids if id.startswith(f"{saga_id}/"))


def _effects_in(rows: Sequence[tuple[str, Any]], values: Mapping[str, StoredValues]) -> list[RecordedEffect]:
    undos = {(row.step, row.generation): row.result for _, row in rows if row.op == "undo"}
    own_undos = {(row.step, row.generation) for _, row in rows if row.op == "own_undo"}
    confirms = {(row.step, row.generation) for _, row in rows if row.op == "confirm" and row.reason == "confirm"}
    effects = []
    for name, row in rows:
        if row.op == "do" and not row.step.startswith((NOTIFICATION_PREFIX, PARTICIPANT_PREFIX)):
            key = (row.step, row.generation)
            marker = _marker_of(name, undos.get(key))
            elsewhere = marker.get(MARKER_KEY) in (ELSEWHERE, CONFIRMED) and key not in own_undos
            is_open = row.reason == "do" and key not in undos
            origin = _origin(name, values[name], origin_place(row.saga_id, *key), row.origin)
            is_confirmed = is_open and key in confirms
            effects.append(
                RecordedEffect(
                    name, *key, is_open, elsewhere, origin, row.created_at, is_confirmed, undone=key in own_undos
                )
            )
    return effects


def _ends_elsewhere(
    guarded: Sequence[tuple[str, Any]],
    commands: Sequence[tuple[str, Any]],
    values: Mapping[str, StoredValues],
    others: Collection[tuple[str, int]],
) -> list[RecordedEffect]:
    """The entries of which nothing but the undo or the confirm has left a row, because they were done outside of the
    guards. ``others``: those that were done inside.
    """
    effects: list[RecordedEffect] = []
    for name, row in (*guarded, *commands):
        key, is_command = (row.step, row.generation), "step_key" in row._mapping
        undoes, confirms = ("undo", "confirm") if is_command else ("own_undo", "own_confirm")
        is_done = not is_command or row.outcome == DONE
        is_undone, is_undoing = row.op == undoes and is_done, row.op == undoes and is_command and row.outcome is None
        is_confirmed = row.op == confirms and is_done
        if key in others or not (is_undone or is_undoing or is_confirmed):
            continue
        place = request_place(row.step_key, "origin") if is_command else origin_place(row.saga_id, *key)
        effects.append(
            RecordedEffect(
                name,
                *key,
                open=False,
                undo_elsewhere=False,
                origin=_origin(name, values[name], place, row.origin),
                created_at=row.created_at,
                confirmed=is_confirmed,
                is_undoing=is_undoing,
                undone=is_undone,
            )
        )
    undone = {(effect.entry, effect.generation) for effect in effects if effect.undone}
    return [effect for effect in effects if effect.undone or (effect.entry, effect.generation) not in undone]


def _commands_in(
    commands: Sequence[tuple[str, Any]], guarded: Sequence[tuple[str, Any]], values: Mapping[str, StoredValues]
) -> list[RecordedEffect]:
    """The commands of a saga that may have had an effect. ``guarded``: its rows in the guards, where the undo of a
    command may have been made.
    """
    undone, confirmed = (
        {(row.step, row.generation) for _, row in guarded if row.op == op} for op in ("own_undo", "own_confirm")
    )
    replies: dict[tuple[str, str, int], set[str | None]] = {}
    for _, row in commands:
        replies.setdefault((row.op, row.step, row.generation), set()).add(row.outcome)
    effects = []
    for name, row in commands:
        if row.op == "do" and row.outcome in (None, DONE):
            key = (row.step, row.generation)
            undos, confirms = replies.get(("undo", *key), set()), replies.get(("confirm", *key), set())
            is_undone = DONE in undos or key in undone
            effects.append(
                RecordedEffect(
                    name,
                    *key,
                    not is_undone,
                    undo_elsewhere=False,
                    origin=_origin(name, values[name], request_place(row.step_key, "origin"), row.origin),
                    created_at=row.created_at,
                    confirmed=not is_undone and (DONE in confirms or key in confirmed),
                    command="sent" if row.outcome is None else "done",
                    is_undoing=not is_undone and None in undos,
                    undone=is_undone,
                )
            )
    return effects


def _origin(connection: str, values: StoredValues, place: ValuePlace, text: str | None) -> Origin | None:
    """The origin in a row that has one. Without the key of its values everything else is known. Raises SagaError."""
    if text is None:
        return None
    unreadable = None
    try:
        text = values.decrypt_origin(place, text)
    except UnreadableRow as error:
        unreadable = str(error)
    try:
        return replace(decode_origin(text), unreadable=unreadable)
    except ValueError:
        raise SagaError(f"the {place[0]} of the connection {connection} cannot be read: {ChangedRow()}") from None


def _marker_of(connection: str, result: str | None) -> Mapping[str, Any]:
    try:
        return decode_marker(result) or {}
    except ChangedRow as error:
        raise SagaError(f"the guard of the connection {connection} cannot be read: {error}") from None


async def read_holdings(settings: Settings, saga_id: str | None = None) -> dict[str, list[str]]:
    """The holdings of sagas in the databases, in words, by saga id: row locks, semantic locks, held events and
    prepared transactions. A saga that has ended holds nothing. Raises SagaError.
    """
    held: dict[str, list[str]] = {}
    readers = TableReaders()
    for connection in settings.sql_connections():
        async with reading_tables(connection, "the locks and held events") as (engine, tables):
            for what, table, ids in await _holders(engine, tables, saga_id):
                if ids and await readers.is_read(connection.name, engine, table):
                    continue
                for id in ids:
                    held.setdefault(id, []).append(f"{what} on {connection.name}")
    return held


async def _holders(
    engine: AsyncEngine, tables: Collection[str], saga_id: str | None
) -> list[tuple[str, str, list[str]]]:
    """The holdings of sagas in words, with the table that tells it, and the ids of their sagas."""
    holdings: list[tuple[str, str, list[str]]] = []
    events = outbox_rows(engine.dialect.name)
    for what, table, condition in (
        ("row locks", row_lock_table, sa.true()),
        ("locks", lock_table, sa.true()),
        ("held events", events, events.c.status == HELD),
    ):
        if table.name in tables:
            query = sa.select(table.c.saga_id).where(condition).distinct().limit(MAX_SAGAS)
            if saga_id is not None:
                query = query.where(table.c.saga_id == saga_id)
            async with engine.connect() as database:
                holdings.append((what, table.name, list((await database.execute(query)).scalars())))
    if guard_table.name in tables and engine.dialect.name != "sqlite":
        prepared = await list_prepared(engine, saga_id)
        ids = [transaction.entry_key.saga_id for transaction in prepared if transaction.entry_key is not None]
        holdings.append(("prepared transactions", guard_table.name, list(dict.fromkeys(ids))))
    return holdings


@asynccontextmanager
async def reading_tables(connection: SqlConnection, what: str) -> AsyncIterator[tuple[AsyncEngine, Collection[str]]]:
    """A pool for the connection, and the names of its tables."""
    engine = open_command_engine(connection)
    try:
        async with asyncio.timeout(_TIMEOUT):
            async with engine.connect() as database:
                tables = await table_names(database)
            yield engine, tables
    except (SQLAlchemyError, OSError) as error:
        raise unusable(connection, f"{what} of the connection {connection.name} cannot be read", error) from error
    finally:
        await engine.dispose()


def open_origin(effects: Sequence[RecordedEffect]) -> Origin | None:
    """The origin that the first of the open effects has; None if none has one. A reference, which does not tell with
    which input the saga was started, only if there is nothing else.
    """
    origins = [effect.origin for effect in effects if effect.open and effect.origin is not None]
    return next((origin for origin in origins if origin.is_whole), next(iter(origins), None))


def without_others(
    effects: Sequence[RecordedEffect], saga: str, input_digest: str | None, root_start: str
) -> list[RecordedEffect]:
    """The effects without those that a run of another saga, or with another input, has made under the same id, or one
    that is nested in such a saga.
    """

    def is_own(origin: Origin) -> bool:
        is_same = origin.saga == saga and may_equal(origin.input_digest, input_digest)
        return is_same and same_owner(origin.root_start, root_start)

    return [effect for effect in effects if effect.origin is None or is_own(effect.origin)]


def highest_generations(effects: Sequence[RecordedEffect]) -> dict[str, int]:
    """The highest generation of each entry, where it is not the first: a step that ran again must not begin with an
    earlier one.
    """
    highest: dict[str, int] = {}
    for effect in effects:
        if effect.generation > highest.get(effect.entry, 1):
            highest[effect.entry] = effect.generation
    return highest


def last_items(effects: Sequence[RecordedEffect]) -> list[str]:
    """The entries of the last item of each `for_each` that a guard knows."""
    last: dict[str, int] = {}
    for effect in effects:
        step, _, index = effect.entry.partition("#")
        if index.isdigit():
            last[step] = max(int(index), last.get(step, 0))
    return [entry_id(step, index) for step, index in last.items()]


async def effects_with_nested(settings: Settings, saga_id: str) -> dict[str, list[RecordedEffect]]:
    """The :func:`recorded_effects` of a saga and of those that are nested in it, by id. Raises SagaError."""
    return await effects_of_sagas(settings, [saga_id, *await nested_sagas(settings, saga_id)])


def undecided_undo(saga_id: str, effects: Sequence[RecordedEffect], undone: Collection[str] = ()) -> str | None:
    """Why no new run may repeat the undos of a saga, in words: a guard has decided one, and does not know its end. None
    if there is no such undo. ``undone``: entries of which a person knows that theirs has happened.
    """
    for effect in effects:
        if effect.undo_elsewhere and effect.entry not in undone:
            return (
                f"the undo of {effect.entry} was decided, and no guard tells whether its action in another database or "
                f"service has happened: look there for the key {saga_id}/{effect.entry}/undo, and make it if it is "
                "missing"
            )
    return None


def open_effects_of_all(effects: Mapping[str, Sequence[RecordedEffect]], saga_id: str) -> str:
    """The open effects of a saga and of those that are nested in it, in words; empty if there are none."""
    texts = {id: open_effects(its) for id, its in effects.items()}
    return "; ".join(text if id == saga_id else f"{text} of {id}" for id, text in texts.items() if text)


def open_effects(effects: Sequence[RecordedEffect]) -> str:
    """The open effects in words; empty if there are none."""
    is_open = [effect for effect in effects if effect.open or effect.undo_elsewhere]
    return join_names([effect.place for effect in is_open], 5)
