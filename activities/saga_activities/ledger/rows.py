"""Writes and reads the rows of the ledger."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.ledger.records import RunFilter, RunRecord, RunRow
from saga_activities.ledger.tables import definition_table, run_table
from saga_activities.value_places import state_place
from sagas.definition.times import read_timestamp
from sagas.machine.machine import Machine
from sagas.machine.snapshot import expand
from sagas.protocol.payloads import compress_state, decompress_state
from sagas.protocol.saga_view import SagaView
from sagas.text.exact_json import encode_json

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that a text of PostgreSQL's jsonb cannot hold: NUL, and half a surrogate pair."""

_TO_ESCAPE, _ESCAPED = re.compile("[\x00\ufffe\ud800-\udfff]"), re.compile("\ufffe([0-9a-f]{4})")
"""Stories keep these characters as U+FFFE and four digits: it is not a character, and so hardly any text has it."""

_POSTGRESQL = postgresql.dialect()
_KEYS = ("saga_id", "started_at")
_COLUMNS = run_table.c


def make_record(
    document: Mapping[str, Any],
    *,
    saga_id: str,
    labels: Mapping[str, str] | None,
    updated_at: datetime,
    input_digest: str | None,
    machine: bytes | None = None,
    root_start: str = "",
) -> RunRecord | None:
    """The row of a view as JSON; None if the saga has not started, or the table cannot have its id."""
    started_at, ended_at = document.get("started_at"), read_timestamp(document.get("ended_at"))
    # A completed saga may be undone much later, which does not belong to its duration.
    committed_at = read_timestamp(document.get("committed_at")) if document.get("phase") == "backward" else None
    if started_at is None or not fits_guard_key(saga_id):
        return None
    return RunRecord(
        saga_id=saga_id,
        started_at=datetime.fromisoformat(started_at),
        saga=document["saga"],
        generation=document.get("generation") or 1,
        digest=document.get("digest"),
        input_digest=input_digest,
        state=document["state"],
        labels=None if labels is None else storable(labels),
        ended_at=ended_at,
        ran_until=ended_at and (committed_at or ended_at),
        updated_at=updated_at,
        story=document_text({**document, "id": saga_id}),
        machine=machine,
        root_start=root_start or None,
    )


def document_text(view: Mapping[str, Any]) -> str:
    """The view of a saga as the text of its column."""
    return encode_json(_finite(view, _escaped)).decode()


def storable(labels: Any) -> Any:
    """Labels that every database stores: without NUL and half surrogate pairs."""
    return _finite(labels, _replaced)


def _replaced(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text) if _UNSTORABLE.search(text) else text


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: f"\ufffe{ord(match[0]):04x}", text)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


_MAX_ZEROS = 100
"""Zeros of a number in ``jsonb`` for which only its exponent stands: PostgreSQL writes them out for each reader."""


def _finite(value: Any, convert: Callable[[str], str]) -> Any:
    """A JSON value with its text and names converted, and text for infinite numbers and those of too many zeros."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, float | Decimal):
        return value if math.isfinite(value) and not _has_many_zeros(value) else str(value)
    if isinstance(value, Mapping):
        return {convert(key): _finite(item, convert) for key, item in value.items()}
    return [_finite(item, convert) for item in value] if isinstance(value, list | tuple) else value


def _has_many_zeros(number: float | Decimal) -> bool:
    return isinstance(number, Decimal) and abs(number.adjusted()) > _MAX_ZEROS + len(str(number))


# Writing: one statement for many rows.
async def write_rows(connection: AsyncConnection, records: Sequence[RunRecord]) -> None:
    """Insert the rows or update them; a row with a later state stays as it is. At most one record for each key."""
    encrypt = stored_values(connection.engine).encrypt_bytes
    values = [
        {column.name: getattr(record, column.name) for column in _COLUMNS}
        | {"machine": encrypt(state_place(record.saga_id, record.started_at), record.machine)}
        for record in records
    ]
    if connection.dialect.name == "postgresql" and len(values) > 1:
        await connection.execute(*insert_together(run_table, values, _upsert("postgresql")))
    else:
        await connection.execute(_upsert(connection.dialect.name), values)


def insert_together(
    table: sa.Table, rows: Sequence[Mapping[str, Any]], insert: sa.Insert
) -> tuple[sa.Insert, dict[str, str]]:
    """One statement for many rows on PostgreSQL, and its parameter: all rows as one JSON text.

    ``insert`` has the conflict clause. A statement for each row takes several times the CPU, and so does an array of
    the driver for each column.
    """
    chosen = ", ".join(_from_json(number, column.type) for number, column in enumerate(table.c))
    source = sa.text(f"select {chosen} from json_array_elements(cast(:rows as json)) as r").columns(*table.c)
    values = [[_json_value(row[column.name]) for column in table.c] for row in rows]
    return insert.from_select([column.name for column in table.c], source), {"rows": encode_json(values).decode()}


def _from_json(number: int, type: sa.types.TypeEngine[Any]) -> str:
    """The SQL of a value of a JSON array."""
    kind = type.compile(dialect=_POSTGRESQL)
    if kind == "BYTEA":
        return f"decode(r->>{number}, 'base64')"
    return f"cast(r->>{number} as {kind})"


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else value


def among(connection: AsyncConnection, column: sa.ColumnElement[str], ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return whether a column has one of these ids. On PostgreSQL they are one parameter, which takes less CPU than
    many.
    """
    if connection.dialect.name != "postgresql":
        return column.in_(ids)
    text = sa.cast(sa.literal(encode_json(list(ids)).decode(), sa.Text), sa.JSON)
    given = sa.select(sa.func.json_array_elements_text(text)).scalar_subquery()
    return column == sa.any_(sa.func.array(given))


def _upsert(dialect: str) -> sa.Insert:
    if dialect in ("mysql", "mariadb"):
        insert = mysql.insert(run_table)
        newer = insert.inserted.updated_at >= _COLUMNS.updated_at
        changes = {name: sa.func.if_(newer, new, _COLUMNS[name]) for name, new in _new_values(insert.inserted).items()}
        # Assignments are carried out in order, so the time to compare with comes last.
        return insert.on_duplicate_key_update(
            [*changes.items(), ("updated_at", sa.func.greatest(insert.inserted.updated_at, _COLUMNS.updated_at))]
        )
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(run_table)
    return insert.on_conflict_do_update(
        index_elements=_KEYS,
        set_={**_new_values(insert.excluded), "updated_at": insert.excluded.updated_at},
        where=insert.excluded.updated_at >= _COLUMNS.updated_at,
    )


def _new_values(new: Any) -> dict[str, Any]:
    changed = {column.name: new[column.name] for column in _COLUMNS if column.name not in (*_KEYS, "updated_at")}
    changed["labels"] = sa.func.coalesce(new.labels, _COLUMNS.labels)
    for name in ("input_digest", "root_start", "bulk_id"):
        changed[name] = sa.func.coalesce(new[name], _COLUMNS[name])
    return changed


_READ = (
    _COLUMNS.saga_id,
    _COLUMNS.started_at,
    _COLUMNS.updated_at,
    _COLUMNS.state,
    _COLUMNS.labels,
    _COLUMNS.input_digest,
    _COLUMNS.root_start,
    _COLUMNS.story,
    _COLUMNS.machine.is_not(None).label("has_machine"),
)


async def read_run(engine: AsyncEngine, saga_id: str) -> RunRow | None:
    """The newest row of this id; None if there is none."""
    async with engine.connect() as connection:
        return await read_newest(connection, saga_id)


async def read_story(
    engine: AsyncEngine, saga_id: str, *, saga: str, generation: int, input_digest: str | None, root_start: str
) -> RunRow | None:
    """The newest row of this id that is of this saga, this generation, this input and, if it is nested, this root saga;
    None if there is none.

    A digest that the row does not have, or that is None or empty, equals any.
    """
    query = sa.select(*_READ).where(
        _COLUMNS.saga_id == saga_id, _COLUMNS.saga == saga, _COLUMNS.generation == generation
    )
    if input_digest is not None:
        query = query.where(sa.or_(_COLUMNS.input_digest.is_(None), _COLUMNS.input_digest == input_digest))
    if root_start:
        query = query.where(sa.or_(_COLUMNS.root_start.is_(None), _COLUMNS.root_start == root_start))
    async with engine.connect() as connection:
        rows = (await connection.execute(query.order_by(_COLUMNS.started_at.desc()).limit(1))).all()
        return next(iter(await _to_rows(connection, rows)), None)


async def read_newest(connection: AsyncConnection, saga_id: str) -> RunRow | None:
    """Read the newest row of a saga on an open connection; None if it has none."""
    query = sa.select(*_READ).where(_COLUMNS.saga_id == saga_id).order_by(_COLUMNS.started_at.desc()).limit(1)
    rows = await _to_rows(connection, (await connection.execute(query)).all())
    return rows[0] if rows else None


async def read_machine(engine: AsyncEngine, saga_id: str) -> bytes | None:
    """The compressed snapshot of the newest row of this id; None if there is none."""
    query = (
        sa.select(_COLUMNS.saga_id, _COLUMNS.started_at, _COLUMNS.machine, _COLUMNS.digest, _COLUMNS.story)
        .where(_COLUMNS.saga_id == saga_id)
        .order_by(_COLUMNS.started_at.desc())
        .limit(1)
    )
    async with engine.connect() as connection:
        row = (await connection.execute(query)).first()
        if row is None or row.machine is None:
            return None
        machine = stored_values(engine).decrypt_bytes(state_place(row.saga_id, row.started_at), row.machine)
        if row.story is not None:
            return machine
        snapshot = await _with_definition(connection, machine, row.digest)
        return None if snapshot is None else compress_state(snapshot)


async def read_runs(engine: AsyncEngine, saga_ids: Sequence[str]) -> dict[str, RunRow]:
    """The newest row of each id that has one."""
    async with engine.connect() as connection:
        of_these = among(connection, _COLUMNS.saga_id, saga_ids)
        query = sa.select(*_READ).where(of_these).order_by(_COLUMNS.started_at)
        newest = {row.saga_id: row for row in await connection.execute(query)}
        return {row.view.id: row for row in await _to_rows(connection, list(newest.values()))}


async def read_states(engine: AsyncEngine, saga_ids: Sequence[str]) -> dict[str, str]:
    """The state of the newest row of each id that has one."""
    async with engine.connect() as connection:
        of_these = among(connection, _COLUMNS.saga_id, saga_ids)
        query = sa.select(_COLUMNS.saga_id, _COLUMNS.state, _COLUMNS.started_at).where(of_these)
        rows = await connection.execute(query.order_by(_COLUMNS.started_at))
        return {row.saga_id: row.state for row in rows}


async def list_runs(engine: AsyncEngine, criteria: RunFilter, limit: int) -> list[RunRow]:
    """The newest rows that match. Of the rows of one id, from `saga start --again`, only the newest counts."""
    later_row = run_table.alias("later_row")
    is_newest = ~sa.exists().where(
        later_row.c.saga_id == _COLUMNS.saga_id, later_row.c.started_at > _COLUMNS.started_at
    )
    query = (
        sa.select(*_READ).where(is_newest).order_by(_COLUMNS.started_at.desc(), _COLUMNS.saga_id.desc()).limit(limit)
    )
    if criteria.saga is not None:
        query = query.where(_COLUMNS.saga == criteria.saga)
    if criteria.states:
        query = query.where(_COLUMNS.state.in_(criteria.states))
    if criteria.since is not None:
        query = query.where(_COLUMNS.started_at >= criteria.since)
    if criteria.id_prefix:
        query = query.where(begins_with(_COLUMNS.saga_id, criteria.id_prefix))
    for name, value in criteria.labels.items():
        query = query.where(has_label(_COLUMNS.labels, name, value))
    if criteria.before is not None:
        at, saga_id = criteria.before
        later = sa.and_(_COLUMNS.started_at == at, _COLUMNS.saga_id < saga_id)
        # The first condition begins the scan of an index there; no database takes an alternative for that.
        query = query.where(_COLUMNS.started_at <= at, sa.or_(_COLUMNS.started_at < at, later))
    async with engine.connect() as connection:
        return await _to_rows(connection, (await connection.execute(query)).all())


async def read_rows(connection: AsyncConnection, keys: Sequence[tuple[str, datetime]]) -> list[RunRow]:
    """The rows with these keys, in no order."""
    query = sa.select(*_READ).where(among(connection, _COLUMNS.saga_id, [saga_id for saga_id, _ in keys]))
    chosen = set(keys)
    rows = [row for row in await connection.execute(query) if (row.saga_id, row.started_at) in chosen]
    return await _to_rows(connection, rows)


def has_label(labels: sa.Column[Any], name: str, value: str) -> sa.ColumnElement[bool]:
    """The condition in SQL that a row has the label ``name`` with this value in its column of labels."""
    # Not every database has an escape for these in a path; names of labels in definitions have neither.
    return sa.false() if {'"', "\\"} & set(name) else labels[name].as_string() == value


def begins_with(column: sa.Column[Any], prefix: str) -> sa.ColumnElement[bool]:
    """The condition in SQL that a text begins with exactly these characters. LIKE has no regard to case in SQLite."""
    return sa.func.substr(column, 1, len(prefix)) == prefix


async def _to_rows(connection: AsyncConnection, rows: Sequence[Any]) -> list[RunRow]:
    missing = {(row.saga_id, row.started_at) for row in rows if row.story is None}
    documents = await documents_of_machines(connection, missing) if missing else {}
    documents |= {(row.saga_id, row.started_at): _finite(row.story, _unescaped) for row in rows if row.story}
    # A row may have been deleted between the two reads.
    return [_to_row(row, documents[key]) for row in rows if (key := (row.saga_id, row.started_at)) in documents]


async def documents_of_machines(
    connection: AsyncConnection, keys: Set[tuple[str, datetime]], *, must_read: bool = False
) -> dict[tuple[str, datetime], Mapping[str, Any]]:
    """The documents of sagas of bulk workflows, which are stored as the machine alone until they are undone.

    The document of a machine that cannot be decrypted says so; with ``must_read`` it raises UnreadableRow.
    """
    columns = (
        _COLUMNS.saga_id, _COLUMNS.started_at, _COLUMNS.machine, _COLUMNS.digest, _COLUMNS.saga, _COLUMNS.story,
    )  # fmt: skip
    of_these = among(connection, _COLUMNS.saga_id, sorted({saga_id for saga_id, _ in keys}))
    query = sa.select(*columns).where(of_these)
    rows = [row for row in await connection.execute(query) if (row.saga_id, row.started_at) in keys]
    values = stored_values(connection.engine)
    definitions = {digest: await _read_definition(connection, digest) for digest in {row.digest for row in rows}}
    return {
        (row.saga_id, row.started_at): _finite(row.story, _unescaped)
        if row.story
        else _document_of_machine(values, row, definitions[row.digest], must_read=must_read)
        for row in rows
    }


def _document_of_machine(values: StoredValues, row: Any, definition: Any, *, must_read: bool) -> Mapping[str, Any]:
    if definition is None:
        return {"saga": row.saga, "steps": [], "incomplete": "its definition is no longer in the ledger"}
    try:
        machine = values.decrypt_bytes(state_place(row.saga_id, row.started_at), row.machine)
        snapshot = expand(decompress_state(machine), definition)
    except UnreadableRow as error:
        if must_read:
            raise
        return {"saga": row.saga, "steps": [], "incomplete": str(error)}
    return Machine.restore(snapshot).view().to_json()


async def _with_definition(connection: AsyncConnection, machine: bytes, digest: str | None) -> dict[str, Any] | None:
    """The whole snapshot of a machine of a bulk workflow; None if its definition was not kept."""
    definition = await _read_definition(connection, digest)
    return None if definition is None else expand(decompress_state(machine), definition)


async def _read_definition(connection: AsyncConnection, digest: str | None) -> Any:
    query = sa.select(definition_table.c.definition).where(definition_table.c.digest == digest)
    return (await connection.execute(query)).scalar_one_or_none()


def _to_row(row: Any, document: Mapping[str, Any]) -> RunRow:
    view = SagaView.from_json({**document, "id": row.saga_id, "state": row.state, "labels": row.labels or {}})
    # Without its run nobody can carry out a decision.
    parked = tuple(replace(operation, decisions=(), commands=()) for operation in view.parked)
    can_undo = view.state == "COMPLETED" and view.can_undo and bool(row.has_machine)
    return RunRow(
        view=replace(view, parked=parked, can_undo=can_undo, source="ledger"),
        input_digest=row.input_digest,
        started_at=row.started_at,
        updated_at=row.updated_at,
        root_start=row.root_start or "",
    )
