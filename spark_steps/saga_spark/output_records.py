"""Output records, the table ``saga_output`` in the database of ``[spark] ledger``: fence and state of staged outputs.

One row per target (saga, step, generation, output). ``epoch`` is the fencing token: every takeover increments it, and
an attempt with an older epoch can no longer change anything. The table is in the same database as the guard, and state
changes that decide a saga (STAGED with ``do``, PUBLISHED with ``confirm``, …) are written in the guard's transaction.

States: STAGING → STAGED → PUBLISHED → REVERTED (reverted after publication) or CLOSED (reverted by hand, by an
operator's decision); DISCARDED (undone before publication); QUARANTINED (rejected by the audit).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.database_clock import DatabaseNow
from saga_activities.guard.entry_key import MAX_ENTRY, MAX_GUARD_ID
from saga_activities.guard.schema import DIALECTS, create_metadata, metadata_ddl
from saga_activities.guard.tables import TABLE_OPTIONS, guard_table, long_text, short_text
from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, sink_for
from sagas.text.exact_json import decode_json, encode_json

OutputState = Literal["STAGING", "STAGED", "PUBLISHED", "REVERTED", "CLOSED", "DISCARDED", "QUARANTINED"]

metadata = sa.MetaData()


def _ascii_string(length: int) -> sa.types.TypeEngine[str]:
    """ASCII strings: output names are plain ASCII, and with this charset the key fits MySQL's limit of 3,072 bytes."""
    # MariaDB's other one takes "e" and "e " as one key; MySQL has no other one.
    ascii = mysql.VARCHAR(length, charset="ascii", collation="/*!80017 ascii_bin */ /*M! ascii_nopad_bin */")
    return short_text(length).with_variant(ascii, "mysql", "mariadb")


outputs = sa.Table(
    "saga_output",
    metadata,
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("step", short_text(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("output", _ascii_string(64), nullable=False),
    sa.Column("publish_key", short_text(32), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("state", short_text(12), nullable=False),
    # Saga name and destination: the previous run of this output is looked up by them.
    sa.Column("saga", short_text(255), nullable=False),
    sa.Column("place", short_text(255), nullable=False),
    sa.Column("together", sa.Boolean, nullable=False),
    sa.Column("staged_epoch", sa.Integer),  # the epoch of the manifest that counts
    sa.Column("manifest", long_text()),
    sa.Column("manifest_sha", short_text(64)),
    sa.Column("row_count", sa.BigInteger),
    sa.Column("spec", long_text(), nullable=False),  # the output as defined in the step
    sa.Column("inputs", long_text()),  # the inputs as resolved by the first attempt, so that a retry reads the same
    sa.Column("published", long_text()),
    sa.Column("report", short_text(1024)),  # location of the audit report
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("cleaned_at", sa.Double),  # when its files were deleted from the stage area
    sa.Column("forgotten_at", sa.Double),  # when the sink dropped the data kept only for an undo
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "output"),
    sa.Index("saga_output_place", "saga", "place", "state", "updated_at"),
    **TABLE_OPTIONS,
)


class FencedOut(Exception):
    """A later attempt has taken over this output, so what this attempt staged is ignored."""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row. ``inputs`` and ``published`` are JSON values; times are in seconds since the epoch."""

    target: Target
    epoch: int
    state: OutputState
    saga: str
    place: str
    together: bool
    spec: Mapping[str, Any]
    manifest: Manifest | None = None
    inputs: Mapping[str, Any] | None = None
    published: Mapping[str, Any] | None = None
    report: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0

    @staticmethod
    def from_row(row: Mapping[Any, Any]) -> OutputRow:
        def value(name: str) -> Any:
            text = row[name]
            return None if text is None else decode_json(text)

        manifest = value("manifest")
        return OutputRow(
            target=Target(row["saga_id"], row["step"], row["generation"], row["output"]),
            epoch=row["epoch"],
            state=row["state"],
            saga=row["saga"],
            place=row["place"],
            together=bool(row["together"]),
            spec=value("spec"),
            manifest=None if manifest is None else Manifest.from_json(manifest),
            inputs=value("inputs"),
            published=value("published"),
            report=row["report"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
        )


async def create_table(engine: AsyncEngine) -> None:
    """Create the table if it does not exist; repeatable."""
    await create_metadata(engine, metadata, ())


def table_ddl(dialect: str) -> str:
    """The DDL of :func:`create_table`, for a database administrator. Raises KeyError for an unknown dialect."""
    return ";\n\n".join(metadata_ddl(DIALECTS[dialect](), metadata)) + ";\n"


async def take_over(
    connection: AsyncConnection, target: Target, *, saga: str, place: str, spec: Mapping[str, Any], together: bool
) -> OutputRow:
    """Begin an attempt: ensure that the row exists and increment its epoch. Must run inside a transaction.

    Raises :class:`FencedOut` if the fate of the output is already decided: an attempt that consulted the guard earlier
    and was then suspended must not stage again under a row that describes a published output.
    """
    now = DatabaseNow()
    values = {
        "saga_id": target.saga_id,
        "step": target.step,
        "generation": target.generation,
        "output": target.output,
        "publish_key": target.publish_key,
        "epoch": 0,
        "state": "STAGING",
        "saga": saga,
        "place": place,
        "together": together,
        "spec": encode_json(spec).decode(),
        "created_at": now,
        "updated_at": now,
    }
    await connection.execute(_insert_once(connection.dialect.name, values))
    state = (await connection.execute(select_state_for_update(target))).scalar_one()
    if state not in ("STAGING", "QUARANTINED"):
        raise FencedOut(f"the output {target.output} of {target.step} is already {state.lower()}")
    change = sa.update(outputs).where(*_has_target(target))
    await connection.execute(change.values(epoch=outputs.c.epoch + 1, updated_at=now, cleaned_at=None))
    return OutputRow.from_row((await connection.execute(_select_row(target))).mappings().one())


def _insert_once(dialect: str, values: Mapping[str, Any]) -> sa.Insert:
    """An insert that leaves an existing row unchanged, and waits for an open transaction that has inserted it.

    On MySQL it also locks that row exclusively: INSERT IGNORE takes a shared lock, and two transactions that both hold
    it and then upgrade it deadlock.
    """
    if dialect in ("mysql", "mariadb"):
        return mysql.insert(outputs).values(values).on_duplicate_key_update(output=outputs.c.output)
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(outputs).values(values).on_conflict_do_nothing()


async def update_row(connection: AsyncConnection, target: Target, epoch: int, **values: Any) -> None:
    """Change the row as the holder of ``epoch``; JSON columns take Python values.

    Also clears ``cleaned_at``: an attempt that is still working leaves files, so the output has to be cleaned up again.
    Raises :class:`FencedOut` if another attempt holds the output.
    """
    await connection.execute(select_state_for_update(target))
    changed = await connection.execute(
        sa.update(outputs)
        .where(*_has_target(target), outputs.c.epoch == epoch)
        .values(**_column_values(values), cleaned_at=None)
    )
    if changed.rowcount != 1:
        raise FencedOut(f"another attempt has taken over the output {target.output} of {target.step}")


def set_staged(target: Target, epoch: int, manifest: Manifest) -> sa.Update:
    """The statement that makes a manifest the valid one, for the guarded transaction of ``do``."""
    return (
        sa.update(outputs)
        .where(*_has_target(target), outputs.c.epoch == epoch)
        .values(
            _column_values(
                {
                    "state": "STAGED",
                    "staged_epoch": manifest.epoch,
                    "manifest": manifest.to_json(),
                    "manifest_sha": manifest.sha,
                    "row_count": manifest.rows,
                }
            )
        )
    )


def set_state(target: Target, state: OutputState, published: Any = None) -> sa.Update:
    """The statement that records an output's new state, for the guarded transactions of publish and undo."""
    values: dict[str, Any] = {"state": state}
    if published is not None:
        values["published"] = published
    return sa.update(outputs).where(*_has_target(target)).values(_column_values(values))


def select_outputs_of_step(saga_id: str, step: str, generation: int) -> sa.Select[Any]:
    """All outputs of one entry."""
    return (
        sa.select(outputs)
        .where(outputs.c.saga_id == saga_id, outputs.c.step == step, outputs.c.generation == generation)
        .order_by(outputs.c.output)
    )


def select_outputs_of_saga(saga_id: str) -> sa.Select[Any]:
    """All outputs of one saga, in the order in which they were staged."""
    query = sa.select(outputs).where(outputs.c.saga_id == saga_id)
    return query.order_by(outputs.c.created_at, outputs.c.step, outputs.c.output)


def latest_generations(rows: Iterable[OutputRow], states: Sequence[OutputState]) -> list[OutputRow]:
    """The last generation of each output, if it is in one of ``states``: earlier generations no longer count."""
    last: dict[tuple[str, str], OutputRow] = {}
    for row in rows:
        key = (row.target.step, row.target.output)
        if key not in last or last[key].target.generation < row.target.generation:
            last[key] = row
    return [row for row in last.values() if row.state in states]


def select_to_clean_up(limit: int, skip: int) -> sa.Select[Any]:
    """Outputs that may still have files in the stage area, oldest first, skipping the first ``skip``."""
    query = sa.select(outputs).where(outputs.c.cleaned_at.is_(None))
    return query.order_by(outputs.c.updated_at, *outputs.primary_key.columns).limit(limit).offset(skip)


def set_cleaned_up(target: Target, epoch: int) -> sa.Update:
    """Mark the stage area as free of this output, unless another attempt has begun since."""
    return sa.update(outputs).where(*_has_target(target), outputs.c.epoch == epoch).values(cleaned_at=DatabaseNow())


def select_undo_data_to_drop(before: float, limit: int) -> sa.Select[Any]:
    """Settled publications and reversions that no undo can reach any more.

    They were settled before ``before``, and the guard in the same database has no row of the saga. As long as it has
    one, the saga is open or can be undone.
    """
    columns = outputs.c
    settled_long_ago = (columns.state.in_(("PUBLISHED", "REVERTED", "CLOSED")), columns.updated_at < before)
    remembered = sa.exists().where(guard_table.c.saga_id == columns.saga_id)
    query = sa.select(outputs).where(columns.forgotten_at.is_(None), *settled_long_ago, ~remembered)
    return query.order_by(columns.updated_at).limit(limit)


def set_undo_data_dropped(target: Target) -> sa.Update:
    """Record that the sink keeps nothing for an undo any more."""
    return sa.update(outputs).where(*_has_target(target)).values(forgotten_at=DatabaseNow())


def select_last_row_count(row: OutputRow) -> sa.Select[Any]:
    """The row count of the last publication of this output by this step of the saga (for `rows: {change: …}`).

    Publications without rows are passed over: no number of rows is a change of some per cent from none.
    The step is the entry id, so each item of a `for_each` is compared with the same item of the previous run.
    """
    columns = outputs.c
    same_output = (columns.place == row.place, columns.output == row.target.output)
    return (
        sa.select(columns.row_count)
        .where(columns.saga == row.saga, columns.step == row.target.step, *same_output, columns.state == "PUBLISHED")
        .where(columns.row_count > 0)
        .order_by(outputs.c.updated_at.desc())
        .limit(1)
    )


def _column_values(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = ("manifest", "inputs", "published", "spec")
    plain = {
        name: encode_json(value).decode() if name in texts and value is not None else value
        for name, value in values.items()
    }
    return {**plain, "updated_at": DatabaseNow()}


def _has_target(target: Target) -> tuple[sa.ColumnElement[bool], ...]:
    columns = outputs.c
    return (
        columns.saga_id == target.saga_id,
        columns.step == target.step,
        columns.generation == target.generation,
        columns.output == target.output,
    )


def _select_row(target: Target) -> sa.Select[Any]:
    return sa.select(outputs).where(*_has_target(target))


def select_state_for_update(target: Target) -> sa.Select[Any]:
    """The row's state, locked until the transaction ends."""
    return sa.select(outputs.c.state).where(*_has_target(target)).with_for_update()


def output_of(row: OutputRow) -> Output:
    """The output as defined in the step."""
    return Output.parse(row.target.output, row.spec)


def publication_of(row: OutputRow) -> Publication:
    """The staged output with its commit tag. The row must have a manifest."""
    assert row.manifest is not None
    return Publication(
        output_of(row), row.manifest, CommitTag(row.target, row.manifest.epoch, row.manifest.sha, row.saga)
    )


def clean_up_sink(row: OutputRow, settings: SparkSettings) -> None:
    """Remove what the sink keeps besides the visible data for a row that is not and will not be visible. Blocks."""
    if row.manifest is not None:
        publication = publication_of(row)
        sink_for(publication.output.kind, settings).clean_up(publication)
