"""The table ``saga_publication``: who has published what in this database, written in the transaction of the rows.

One row per target and generation. PUBLISHED: the rows are visible. REVERTED: they were reverted, or an undo came
first; this generation can no longer be published. CLOSED: an operator has decided that they were reverted by hand; they
block no undo of another publication. DISCARDED: the staged rows are cleaned up; only a later attempt (a higher epoch)
may publish. A publisher first inserts or locks the row, so one that resumes late finds the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from psycopg.rows import dict_row

from saga_spark.manifest import Target
from saga_spark.sinks.postgresql.tables import PgConnection, TargetTable, describe_table
from saga_spark.sinks.sink import Publication
from sagas.text.exact_json import encode_json

PublicationState = Literal["PUBLISHED", "REVERTED", "CLOSED", "DISCARDED"]

DDL = """
create table if not exists saga_publication (
    publish_key text not null,
    generation integer not null,
    state text not null,
    epoch integer not null,
    manifest text not null,
    saga text not null,
    saga_id text not null,
    step text not null,
    output text not null,
    target text not null,
    mode text not null,
    conditions jsonb not null,
    position bigserial not null,
    details jsonb not null,
    changed_at timestamp with time zone not null default now(),
    primary key (publish_key, generation)
);
create index if not exists saga_publication_target on saga_publication (target, state, position);
"""
"""``position`` orders the publications of one table, ``conditions`` is `where`, ``details`` is what the undo needs."""


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """One row of the table."""

    state: PublicationState
    epoch: int
    manifest: str
    position: int
    target: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def publication_table_exists(connection: PgConnection) -> bool:
    row = connection.execute("select pg_catalog.to_regclass('saga_publication') is not null").fetchone()
    return row is not None and row[0]


def create_publication_table(connection: PgConnection) -> None:
    """Create the table if it is missing; repeatable, and safe to run concurrently."""
    if not publication_table_exists(connection):
        connection.execute("select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('saga_publication')::bigint)")
        connection.execute(DDL)


def insert_row(connection: PgConnection, publication: Publication, state: PublicationState) -> bool:
    """Insert the row; False if it exists. Blocks while another open transaction has inserted it."""
    tag, output = publication.tag, publication.output
    values = (
        tag.target.publish_key,
        tag.target.generation,
        state,
        tag.epoch,
        tag.sha,
        tag.saga,
        tag.target.saga_id,
    )
    values += (
        tag.target.step,
        tag.target.output,
        describe_table(connection, output.destination).qualified_name,
        output.mode,
        encode_json(dict(output.where)).decode(),
        "{}",
    )
    cursor = connection.execute(
        "insert into saga_publication (publish_key, generation, state, epoch, manifest, saga, saga_id, step, output, "
        "target, mode, conditions, details) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) "
        "on conflict do nothing",
        values,
    )
    return cursor.rowcount == 1


def find_row(connection: PgConnection, target: Target, *, lock: bool = False) -> PublicationRow | None:
    """The row; with ``lock`` it is locked until the end of the transaction."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            "select state, epoch, manifest, position, target, details from saga_publication "
            "where publish_key = %s and generation = %s" + (" for update" if lock else ""),
            (target.publish_key, target.generation),
        )
        row = cursor.fetchone()
    return PublicationRow(**row) if row else None


def update_row(
    connection: PgConnection,
    publication: Publication,
    state: PublicationState,
    table: TargetTable | None,
    details: Mapping[str, Any],
) -> int:
    """Write the new state, and a position taken under the table's lock, so that positions follow the commit order."""
    tag = publication.tag
    row = connection.execute(
        "update saga_publication set state = %s, epoch = %s, manifest = %s, details = %s, changed_at = now(), "
        "target = coalesce(%s, target), position = nextval(pg_get_serial_sequence('saga_publication', 'position')) "
        "where publish_key = %s and generation = %s returning position",
        (
            state,
            tag.epoch,
            tag.sha,
            encode_json(details).decode(),
            table.qualified_name if table else None,
            tag.target.publish_key,
            tag.target.generation,
        ),
    ).fetchone()
    assert row is not None
    return row[0]


def later_publications(connection: PgConnection, row: PublicationRow) -> list[dict[str, Any]]:
    """The later publications in the same table, oldest first."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            "select saga, saga_id, step, output, generation, mode, conditions, position, changed_at::text, details "
            "from saga_publication where target = %s and state = 'PUBLISHED' and position > %s order by position",
            (row.target, row.position),
        )
        return cursor.fetchall()


def has_other_publications(connection: PgConnection, row: PublicationRow) -> bool:
    """Return whether anything else is published in the same table."""
    other = connection.execute(
        "select exists (select from saga_publication where target = %s and state = 'PUBLISHED' and position <> %s)",
        (row.target, row.position),
    ).fetchone()
    return other is not None and other[0]
