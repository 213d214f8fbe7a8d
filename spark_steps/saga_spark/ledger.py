"""The fence and memory of staged outputs: the table ``saga_output`` in the database of ``[spark] ledger``.

One row for each target (saga, step, generation, output). ``epoch`` is the fencing token: every takeover adds one, and
whoever staged under an older epoch changes nothing any more. The row is written beside the guard's rows, and what
decides a saga (STAGED with ``do``, PUBLISHED with ``confirm``, …) in the very same transaction.

States: STAGING → STAGED → PUBLISHED → RETRACTED (taken back after it was published); DISCARDED (taken back before);
QUARANTINED (the audit refused it).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateTable

from saga_activities.guard.schema import DIALECTS
from saga_activities.guard.tables import MAX_ENTRY, MAX_SAGA_ID, TABLE_OPTIONS, guard_table, long_text
from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, sink_for
from sagas.errors import UsageError

OutputState = Literal["STAGING", "STAGED", "PUBLISHED", "RETRACTED", "DISCARDED", "QUARANTINED"]

metadata = sa.MetaData()


def _ascii_string(length: int) -> sa.types.TypeEngine[str]:
    """Names of outputs are plain ASCII; said to MySQL and MariaDB, the primary key fits into their 3,072 bytes."""
    ascii = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii, "mysql", "mariadb")


outputs = sa.Table(
    "saga_output",
    metadata,
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("output", _ascii_string(64), nullable=False),
    sa.Column("publish_key", sa.String(32), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    # The saga's name and the output's place: "the last run of this output" is looked up by them.
    sa.Column("saga", sa.String(255), nullable=False),
    sa.Column("place", sa.String(255), nullable=False),
    sa.Column("together", sa.Boolean, nullable=False),
    sa.Column("staged_epoch", sa.Integer),  # the epoch whose manifest counts
    sa.Column("manifest", long_text()),
    sa.Column("manifest_sha", sa.String(64)),
    sa.Column("row_count", sa.BigInteger),
    sa.Column("spec", long_text(), nullable=False),  # the output as the step wrote it
    sa.Column("inputs", long_text()),  # the inputs as they were resolved once: a retry reads the same
    sa.Column("published", long_text()),
    sa.Column("report", sa.String(1024)),  # where the audit's report is
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("cleaned_at", sa.Double),  # when the stage area was cleared of it
    sa.Column("forgotten_at", sa.Double),  # when the sink dropped what only an undo would have needed
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "output"),
    sa.Index("saga_output_place", "saga", "place", "state", "updated_at"),
    **TABLE_OPTIONS,
)


class FencedOut(Exception):
    """A later attempt has taken this output over: what this attempt staged counts for nothing."""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row. ``inputs`` and ``published`` are JSON values; times in seconds since the epoch."""

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
            return None if text is None else json.loads(text)

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
    """Create the table where it is missing; repeatable."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)


def table_ddl(dialect_name: str) -> str:
    """The same as :func:`create`, as SQL for a database administrator. Raises KeyError for an unknown dialect."""
    dialect = DIALECTS[dialect_name]()
    statements = [str(CreateTable(outputs, if_not_exists=True).compile(dialect=dialect)).strip()]
    statements += [
        str(sa.schema.CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip()
        for index in outputs.indexes
    ]
    return ";\n\n".join(statements) + ";\n"


async def take_over(
    connection: AsyncConnection, target: Target, *, saga: str, place: str, spec: Mapping[str, Any], together: bool
) -> OutputRow:
    """Begin an attempt: the row exists afterwards, and its epoch is ours alone. Run it in a transaction.

    Raises :class:`Overtaken` when it is decided already what became of the output: an attempt that asked the guard
    before, and stood still, must not stage again under a row that describes what is published by now.
    """
    now = time.time()
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
        "spec": json.dumps(spec),
        "created_at": now,
        "updated_at": now,
    }
    await connection.execute(_insert_once(connection.dialect.name, values))
    state = (await connection.execute(select_state_for_update(target))).scalar_one()
    if state not in ("STAGING", "QUARANTINED"):
        raise FencedOut(f"the output {target.output} of {target.step} is {state.lower()} already")
    change = sa.update(outputs).where(*_has_target(target))
    await connection.execute(change.values(epoch=outputs.c.epoch + 1, updated_at=now, cleaned_at=None))
    return OutputRow.from_row((await connection.execute(_select_row(target))).mappings().one())


def _insert_once(dialect: str, values: Mapping[str, Any]) -> sa.Insert:
    """Leaves a row that is there as it is, and waits for an open transaction that has inserted it.

    On MySQL it also locks that row: IGNORE would share it, and two that share it and then both want it deadlock.
    """
    if dialect in ("mysql", "mariadb"):
        return mysql.insert(outputs).values(values).on_duplicate_key_update(output=outputs.c.output)
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(outputs).values(values).on_conflict_do_nothing()


async def update_row(connection: AsyncConnection, target: Target, epoch: int, **values: Any) -> None:
    """Change the row as the holder of ``epoch``. JSON values are given as Python values. Whoever still works leaves
    something behind, so the row is to be cleaned up (again).

    Raises :class:`Overtaken` when another attempt holds the output now.
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
    """The statement that makes a manifest the one that counts, for the guarded transaction of ``do``."""
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
    """The statement that records how an output stands now, for the guarded transactions of publish and undo."""
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
    """Of each output of each entry its last generation, where that is in one of the states: what an earlier run of the
    saga has left behind counts for nothing in this one."""
    last: dict[tuple[str, str], OutputRow] = {}
    for row in rows:
        key = (row.target.step, row.target.output)
        if key not in last or last[key].target.generation < row.target.generation:
            last[key] = row
    return [row for row in last.values() if row.state in states]


def select_to_clean_up(limit: int, skip: int) -> sa.Select[Any]:
    """Outputs that may still have files in the stage area, oldest first, without the first ``skip`` of them."""
    query = sa.select(outputs).where(outputs.c.cleaned_at.is_(None))
    return query.order_by(outputs.c.updated_at, *outputs.primary_key.columns).limit(limit).offset(skip)


def set_cleaned_up(target: Target, epoch: int) -> sa.Update:
    """Nothing of it is in the stage area any more, unless another attempt has begun since."""
    return sa.update(outputs).where(*_has_target(target), outputs.c.epoch == epoch).values(cleaned_at=time.time())


def select_undo_data_to_drop(before: float, limit: int) -> sa.Select[Any]:
    """Publications, and what was taken back, that no undo can reach any more: settled before that time, and the guard
    beside them knows nothing of the saga. While it does, the saga is open or can be undone, however long that takes."""
    columns = outputs.c
    settled_long_ago = (columns.state.in_(("PUBLISHED", "RETRACTED")), columns.updated_at < before)
    remembered = sa.exists().where(guard_table.c.saga_id == columns.saga_id)
    query = sa.select(outputs).where(columns.forgotten_at.is_(None), *settled_long_ago, ~remembered)
    return query.order_by(columns.updated_at).limit(limit)


def set_undo_data_dropped(target: Target) -> sa.Update:
    """The sink keeps nothing for an undo any more."""
    return sa.update(outputs).where(*_has_target(target)).values(forgotten_at=time.time())


def select_last_row_count(row: OutputRow) -> sa.Select[Any]:
    """The row count of the last publication of this output by this step of the saga (for `rows: {change: …}`). The step
    is the ledger id: each item of a `for_each` is compared with the same item of the last run."""
    columns = outputs.c
    same_output = (columns.place == row.place, columns.output == row.target.output)
    return (
        sa.select(columns.row_count)
        .where(columns.saga == row.saga, columns.step == row.target.step, *same_output, columns.state == "PUBLISHED")
        .order_by(outputs.c.updated_at.desc())
        .limit(1)
    )


def _column_values(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = ("manifest", "inputs", "published", "spec")
    plain = {
        name: json.dumps(value) if name in texts and value is not None else value for name, value in values.items()
    }
    return {**plain, "updated_at": time.time()}


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


# From a row of the ledger to what its sink is told.


def output_of(row: OutputRow) -> Output:
    """The output as the step wrote it."""
    return Output.parse(row.target.output, row.spec)


def publication_of(row: OutputRow) -> Publication:
    """What was staged for the row, with its mark. The row must have a manifest."""
    assert row.manifest is not None
    return Publication(
        output_of(row), row.manifest, CommitTag(row.target, row.manifest.epoch, row.manifest.sha, row.saga)
    )


def clean_up_sink(row: OutputRow, settings: SparkSettings) -> None:
    """Remove what the sink keeps beside the visible data for a row that is not and will not be visible. Blocks."""
    if row.manifest is not None:
        publication = publication_of(row)
        sink_for(publication.output.kind, settings).clean_up(publication)


# The staged output of an ancestor, for a step that reads it: from the ledger, never from a listing.


async def read_staged_files(engine: AsyncEngine, saga_id: str, step: str, output: str | None) -> dict[str, Any]:
    """``files`` and ``schema`` of a step's output: all items of a for_each together.

    Raises UsageError: nothing is staged, or the step has several outputs and ``output`` names none.
    """
    async with engine.connect() as connection:
        found = (await connection.execute(select_outputs_of_saga(saga_id))).mappings()
        rows = latest_generations((OutputRow.from_row(row) for row in found), ("STAGED", "PUBLISHED"))
    rows = [row for row in rows if row.target.step.partition("#")[0] == step]
    names = {row.target.output for row in rows}
    if output is None and len(names) > 1:
        raise UsageError(f"{step} has the outputs {', '.join(sorted(names))}: say which one with `output`")
    rows = [row for row in rows if output in (None, row.target.output)]
    manifests = [row.manifest for row in rows if row.manifest is not None]
    if not manifests:
        raise UsageError(f"the step {step} has no staged output{f' {output}' if output else ''} in this saga")
    return {"files": [file.uri for one in manifests for file in one.files], "schema": manifests[0].schema}
