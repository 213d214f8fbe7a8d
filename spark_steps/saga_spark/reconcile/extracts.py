"""Parquet extracts for a reconciliation: sagas with their entries; guard, outbox and effects per database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard import result_codec
from saga_activities.guard.entry_key import PARTICIPANT_PREFIX
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.tables import guard_table, outbox_table
from saga_activities.guard.two_phase.rules import COMMITTED
from saga_activities.guard.unreadable_rows import ChangedRow, MissingRowKey
from saga_activities.messaging.kafka_request import COMMAND_TYPE
from saga_activities.messaging.outbox import HELD
from saga_activities.table_names import table_names
from saga_activities.value_places import ValuePlace, result_place
from saga_spark.reconcile.effect_values import database_time, read_all_times, row_key, seconds_of_row
from sagas.errors import SagaError
from sagas.portions import in_portions
from sagas.protocol.saga_view import SagaView
from sagas.settings.reconcile import EffectTable
from sagas.text.exact_json import encode_json, number_text

SAGAS_FILE = "sagas.parquet"
ENTRIES_FILE = "entries.parquet"

FINAL_STATES = ("COMPLETED", "COMPENSATED", "RESIDUE")
ABNORMAL_STATES = ("TERMINATED", "FAILED")
"""States of sagas that ended without a final state written by the engine."""

_APPLIED_STATES = ("DONE", "CONFIRMED")
_BATCH_ROWS = 50_000

SAGA_SCHEMA = pa.schema(
    [
        ("saga_id", pa.string()),
        ("saga", pa.string()),
        ("state", pa.string()),
        ("started_at", pa.float64()),
        ("ended_at", pa.float64()),
        ("judged", pa.bool_()),  # ended, and complete enough to be compared with the guards
    ]
)
ENTRY_SCHEMA = pa.schema(
    [
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("state", pa.string()),
        ("guarded", pa.bool_()),
        ("live", pa.bool_()),  # according to the saga its effect is in place
        ("residue", pa.bool_()),  # an operator closed it as it is: known, hence not reported
        ("reads", pa.bool_()),  # it has no effect, so the rows of earlier runs need no undo
    ]
)


class ParquetRowWriter:
    """Writes the rows of one Parquet file in batches. The file exists, possibly empty, when the block ends."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._columns: list[list[Any]] = [[] for _ in schema]
        self._writer: pq.ParquetWriter | None = None
        self.count = 0

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._file, self._schema)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._writer is not None
        self._flush()
        self._writer.close()

    def add(self, *values: Any) -> None:
        """Add one row, in the order of the schema."""
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self.count += 1
        if len(self._columns[0]) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        assert self._writer is not None
        if self._columns[0]:
            arrays = [pa.array(column, field.type) for column, field in zip(self._columns, self._schema, strict=True)]
            self._writer.write_table(pa.table(arrays, schema=self._schema))
            self._columns = [[] for _ in self._schema]


class SagaExport:
    """Writes views of sagas (`saga show` documents) into a folder.

    ``watermark``: the guards may have purged sagas that began before it (seconds since the epoch), so these are not
    compared. ``states`` has the state of each saga that was added.
    """

    def __init__(self, folder: Path, watermark: float = 0.0) -> None:
        self._watermark = watermark
        self._sagas = ParquetRowWriter(folder / SAGAS_FILE, SAGA_SCHEMA)
        self._entries = ParquetRowWriter(folder / ENTRIES_FILE, ENTRY_SCHEMA)
        self.states: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._sagas.__enter__()
        self._entries.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sagas.__exit__(*error)
        self._entries.__exit__(*error)

    @property
    def count(self) -> int:
        return self._sagas.count

    def add(self, view: SagaView) -> None:
        """Add one saga. Its id must be new."""
        saga_id, state = view.id, view.state
        started = epoch_seconds(view.started_at) or 0.0
        judged = is_comparable(view) and started >= self._watermark
        self.states[saga_id] = state
        self._sagas.add(saga_id, view.saga, state, started, epoch_seconds(view.ended_at), judged)
        if not judged or state not in FINAL_STATES:
            return
        residue = {entry.step for entry in view.residue}
        decided = {entry.step for entry in view.operator}
        for row in view.steps:
            reads = row.effect == "none"
            # A run of a reset may not come to a step about which an operator has decided before.
            if row.started_at is None and row.state == "PENDING" and not reads and row.id not in residue:
                continue  # never started
            if row.state == "DONE" and row.attempts == 0 and row.id not in decided:
                continue  # a for_each over an empty list: nothing was called
            self._entries.add(
                saga_id,
                row.id,
                row.generation or 1,
                row.state,
                row.guarantee in ("guarded", "two-phase"),
                row.state in _APPLIED_STATES,
                row.id in residue,
                reads,
            )


def is_comparable(view: SagaView) -> bool:
    """Return whether the saga has ended and its view has all steps (a very long one leaves finished items out)."""
    if view.state in ABNORMAL_STATES:
        return True  # any remaining guard rows count as open effects
    return view.state in FINAL_STATES and bool(view.ended_at) and not view.incomplete and not view.steps_omitted


def epoch_seconds(timestamp: str | None) -> float | None:
    """A timestamp of a view in seconds since the epoch."""
    return None if timestamp is None else datetime.fromisoformat(timestamp).timestamp()


# The extract of a database: its guard, its outbox and the rows that are effects, all from one snapshot.
READ_MARGIN = 3600.0
"""Margin in seconds before a window: a row is written after its attempt was scheduled, by a different clock."""

_PAGE_ROWS = 20_000
_IDS_PER_QUERY = 500

GUARD_SCHEMA = pa.schema(
    [
        ("connection", pa.string()),
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("reason", pa.string()),  # of the `do` row: do, or undo for a seal; null if there is none
        ("undone", pa.bool_()),
        ("created_at", pa.float64()),  # of the `do` row
        ("result", pa.string()),
    ]
)
OUTBOX_SCHEMA = pa.schema(
    [
        ("connection", pa.string()),
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("event_id", pa.string()),
        ("topic", pa.string()),
        ("status", pa.string()),
        ("created_at", pa.float64()),
        ("published_at", pa.float64()),
        ("is_command", pa.bool_()),  # of a `kafka.request`
    ]
)


@dataclass(frozen=True, slots=True)
class ReconciliationScope:
    """The scope of a reconciliation: everything, what happened ``since`` (seconds since the epoch), or one saga and its
    nested ones.

    ``older`` are sagas that ended in the window and may have begun, and done everything, before it.
    """

    since: float | None = None
    saga_id: str | None = None
    older_saga_ids: tuple[str, ...] = ()

    @property
    def read_since(self) -> float | None:
        return None if self.since is None else self.since - READ_MARGIN


def effect_schema(amounts: int) -> pa.Schema:
    """``bound`` links a row to its step, ``row`` is its key as JSON, ``time`` in seconds, ``a0 …`` the amounts."""
    columns = [(f"a{at}", pa.string()) for at in range(amounts)]
    return pa.schema([("bound", pa.string()), ("row", pa.string()), ("time", pa.float64()), *columns])


async def extract_database(
    engine: AsyncEngine,
    name: str,
    effects: Sequence[EffectTable],
    folder: Path,
    scope: ReconciliationScope,
    guarded: Sequence[EffectTable] | None,
) -> dict[str, int]:
    """Read one connection into ``guard/``, ``outbox/`` and ``effects/`` of the folder; returns row counts.

    ``guarded``: the tables whose rows are compared with this guard, which other connections may lead to as well; None
    if it, and its outbox, are read through another one.

    Raises SagaError for a row whose time is not one.
    """
    counts: dict[str, int] = {}
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "REPEATABLE READ"
    async with engine.connect() as plain:
        await read_all_times(plain)
        connection = await plain.execution_options(isolation_level=level)
        async with connection.begin():
            tables = await table_names(connection)
            if guarded is not None and guard_table.name in tables:
                results = any(effect.amounts or effect.binding == "result" for effect in guarded)
                with ParquetRowWriter(folder / "guard" / f"{name}.parquet", GUARD_SCHEMA) as rows:
                    await _extract_guard(connection, name, rows, scope, results)
                    counts["guard"] = rows.count
                with ParquetRowWriter(folder / "outbox" / f"{name}.parquet", OUTBOX_SCHEMA) as rows:
                    await _extract_outbox(connection, name, rows, scope)
                    counts["outbox"] = rows.count
            for effect in effects:
                with ParquetRowWriter(
                    folder / "effects" / f"{effect.name}.parquet", effect_schema(len(effect.amounts))
                ) as rows:
                    await _extract_effects(connection, effect, rows, scope)
                    counts[effect.name] = rows.count
    return counts


async def _extract_guard(
    connection: AsyncConnection, name: str, rows: ParquetRowWriter, scope: ReconciliationScope, results: bool
) -> None:
    table = guard_table.c
    is_do, is_run, is_committed = table.op == "do", table.op.like("run.%"), table.op == COMMITTED
    stored = [
        sa.func.max(sa.case((condition, column)))
        for condition in (is_run, is_committed, is_do)
        for column in (table.op, table.result)
    ]
    # The row of `do` of a two-phase step exists before its effect, which the row `committed` appears with.
    has_effect = sa.or_(
        sa.func.max(sa.case((is_run, 1), else_=0)) == 0,
        sa.func.max(sa.case((is_committed, 1), else_=0)) == 1,
        sa.func.max(sa.case((is_do, table.reason))) == "undo",
    )
    query = sa.select(
        table.saga_id,
        table.step,
        table.generation,
        sa.func.max(sa.case((is_do, table.reason))),
        sa.func.max(sa.case((table.op == "undo", 1), else_=0)),
        sa.func.max(sa.case((is_do, table.created_at))),
        *(stored if results else ()),
    ).group_by(table.saga_id, table.step, table.generation)
    # The rows of a participant belong to commands of sagas of any project, which its callers reconcile.
    query = query.where(table.step.not_like(f"{PARTICIPANT_PREFIX}%")).having(has_effect)
    conditions: list[sa.ColumnElement[bool] | None] = [_saga_condition(table.saga_id, scope)]
    if scope.read_since is not None:
        # Complete sagas, however old their first rows are.
        recent = sa.select(table.saga_id).where(table.created_at >= scope.read_since)
        conditions = [table.saga_id.in_(recent)]
        conditions += [
            sa.and_(table.saga_id.in_(portion), table.saga_id.not_in(recent))
            for portion in in_portions(scope.older_saga_ids, _IDS_PER_QUERY)
        ]
    stored_form = stored_values(connection.engine)
    for condition in conditions:
        stream = await connection.stream(query if condition is None else query.where(condition))
        async for page in stream.partitions(_PAGE_ROWS):
            for saga_id, step, generation, reason, undone, created_at, *by_op in map(list, page):
                result = None
                for op, text in zip(by_op[::2], by_op[1::2], strict=True):
                    if result is None and text is not None:
                        result = _decoded(stored_form, result_place(saga_id, step, generation, op), text)
                comparable = _comparable_result(result)
                rows.add(name, saga_id, step, generation, reason, bool(undone), created_at, comparable)


async def _extract_outbox(
    connection: AsyncConnection, name: str, rows: ParquetRowWriter, scope: ReconciliationScope
) -> None:
    table = outbox_table.c
    query = sa.select(
        table.saga_id,
        table.step,
        table.generation,
        table.event_id,
        table.topic,
        table.status,
        table.created_at,
        table.published_at,
        table.event_type,
    )
    condition = _saga_condition(table.saga_id, scope)
    if condition is not None:
        query = query.where(condition)
    elif scope.since is not None:
        # An event that was held or could not be published was written long before it was published; and the saga that
        # an event waits for may have ended only now.
        recent = (table.created_at >= scope.since, table.published_at >= scope.since)
        query = query.where(sa.or_(*recent, table.status == HELD))
    stream = await connection.stream(query)
    async for page in stream.partitions(_PAGE_ROWS):
        for *row, event_type in page:
            rows.add(name, *row, event_type == COMMAND_TYPE)


def _saga_condition(column: sa.ColumnElement[str], scope: ReconciliationScope) -> sa.ColumnElement[bool] | None:
    if scope.saga_id is None:
        return None
    return sa.or_(column == scope.saga_id, column.startswith(f"{scope.saga_id}/", autoescape=True))


async def _extract_effects(
    connection: AsyncConnection, effects: EffectTable, rows: ParquetRowWriter, scope: ReconciliationScope
) -> None:
    bound = sa.literal_column(f"({effects.expression})")
    columns = [bound, sa.literal_column(f"({effects.time})") if effects.time else sa.null()]
    columns += [sa.literal_column(name) for name in (*effects.key, *effects.amounts)]
    query = sa.select(*(column.label(f"c{at}") for at, column in enumerate(columns))).select_from(
        sa.text(effects.table)
    )
    if effects.where:
        query = query.where(sa.literal_column(f"({effects.where})"))  # with `:` as it is written
    if scope.read_since is not None and effects.time:
        query = query.where(columns[1] >= sa.bindparam("floor", database_time(connection, scope.read_since)))
    if effects.binding != "result":
        condition = _saga_condition(sa.cast(bound, sa.String(2000)), scope)
        query = query if condition is None else query.where(condition)
    keys = len(effects.key)
    stream = await connection.stream(query)
    async for page in stream.partitions(_PAGE_ROWS):
        for value, time, *key_and_amounts in page:
            key = row_key(effects.key, key_and_amounts[:keys])
            amounts = (None if amount is None else str(amount) for amount in key_and_amounts[keys:])
            rows.add(None if value is None else str(value), key, seconds_of_row(time, effects.name, key), *amounts)


def _decoded(stored: StoredValues, place: ValuePlace, result: str) -> Any:
    try:
        return result_codec.decode(stored.decrypt_result(place, result))
    except MissingRowKey as error:
        raise SagaError(str(error), help="set [codec] key in saga.toml as the workers have it") from None
    except ChangedRow as error:
        raise SagaError(str(error), help="restore the rows of saga_guard from a backup") from None


def _comparable_result(value: Any) -> str | None:
    """A result whose numbers are strings, as they would be read as doubles. A list of one row is that row."""
    if value is None:
        return None
    row = value[0] if isinstance(value, list) and len(value) == 1 else value
    return encode_json(_with_texts(row)).decode()


def _with_texts(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() | Decimal():
            return number_text(value)
        case dict():
            return {name: _with_texts(item) for name, item in value.items()}
        case list():
            return [_with_texts(item) for item in value]
    return value
