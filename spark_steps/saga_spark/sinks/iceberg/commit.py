"""Commits to each kind of catalog: compared with and swapped against exactly what was read.

A SQL catalog compares the location of the table's metadata, which is never reused, in one database transaction over all
tables. Other catalogs compare the table's head; every commit of this sink, including an undo, creates a new snapshot,
so that no head occurs twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    TableRequirement,
    TableUpdate,
)
from sqlalchemy.exc import IntegrityError

from saga_activities.session_settings import durable_commit
from saga_spark.sinks.iceberg.catalog import TableName, no_common_commit
from saga_spark.sinks.iceberg.pyiceberg_internals import new_pointer_row, post_multi_table_commit, write_next_metadata
from saga_spark.sinks.sink import CommitConflict

_COMMIT_TIMEOUTS = (
    "select set_config('idle_in_transaction_session_timeout', '30s', true), set_config('lock_timeout', '30s', true)"
)
"""Timeout for the few milliseconds of a commit, so that a suspended process does not block the pointers for long."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The next metadata of one table. ``table`` is the table as read, or staged if ``creates_table``."""

    name: TableName
    table: Table
    creates_table: bool
    updates: tuple[TableUpdate, ...]

    def requirements(self) -> tuple[TableRequirement, ...]:
        if self.creates_table:
            return (AssertCreate(),)
        metadata = self.table.metadata
        asserted: dict[type[Any], dict[str, Any]] = {
            AssertTableUUID: {"uuid": metadata.table_uuid},
            AssertRefSnapshotId: {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id},
            AssertCurrentSchemaId: {"current-schema-id": metadata.current_schema_id},
            AssertDefaultSpecId: {"default-spec-id": metadata.default_spec_id},
        }
        return tuple(kind.model_validate(values) for kind, values in asserted.items())


def commit(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
    """Commit all changes or none. Raises CommitConflict if a table has changed since it was read.

    Raises UsageError if there are several changes and the catalog has no multi-table transactions.
    """
    if isinstance(catalog, SqlCatalog):
        _commit_sql(catalog, commits)
    elif len(commits) == 1:
        _commit_single(catalog, commits[0])
    elif isinstance(catalog, RestCatalog):
        _commit_rest(catalog, commits)
    else:
        raise no_common_commit(catalog.name)


def _commit_sql(catalog: SqlCatalog, commits: Sequence[TableCommit]) -> None:
    """One database transaction over the pointers of all tables. New metadata files are written before it, unseen."""
    staged = []
    for change in commits:
        table = None if change.creates_table else change.table
        new = write_next_metadata(catalog, table, change.name.identifier, change.requirements(), change.updates)
        staged.append((change, new.metadata_location))
    try:
        with catalog.engine.begin() as connection:
            if catalog.engine.dialect.name == "postgresql":
                connection.execute(sa.text(_COMMIT_TIMEOUTS))
                connection.execute(sa.text(f"SELECT {durable_commit(local=True)}"))
            # In a fixed order, so that two publishers of the same tables do not deadlock.
            for change, location in sorted(staged, key=lambda pair: pair[0].name.identifier):
                _swap_metadata_location(catalog, connection, change, location)
    except (CommitConflict, IntegrityError) as error:
        for change, location in staged:
            change.table.io.delete(location)
        if isinstance(error, CommitConflict):
            raise
        raise CommitConflict("the table was created concurrently") from error


def _swap_metadata_location(
    catalog: SqlCatalog, connection: sa.Connection, table_commit: TableCommit, location: str
) -> None:
    namespace = Catalog.namespace_to_string(table_commit.name.namespace)
    rows = cast(sa.Table, IcebergTables.__table__)
    if not table_commit.creates_table:
        moved = connection.execute(
            sa.update(rows)
            .where(
                rows.c.catalog_name == catalog.name,
                rows.c.table_namespace == namespace,
                rows.c.table_name == table_commit.name.table,
                rows.c.metadata_location == table_commit.table.metadata_location,
            )
            .values(metadata_location=location, previous_metadata_location=table_commit.table.metadata_location)
        )
        if moved.rowcount != 1:
            raise CommitConflict(f"the table {table_commit.name} was changed concurrently")
        return
    spaces = cast(sa.Table, IcebergNamespaceProperties.__table__)
    is_space = (spaces.c.catalog_name == catalog.name, spaces.c.namespace == namespace)
    if connection.execute(sa.select(spaces.c.namespace).where(*is_space).limit(1)).first() is None:
        for key, value in IcebergNamespaceProperties.NAMESPACE_MINIMAL_PROPERTIES.items():
            connection.execute(
                sa.insert(spaces).values(
                    catalog_name=catalog.name, namespace=namespace, property_key=key, property_value=value
                )
            )
    connection.execute(sa.insert(rows).values(new_pointer_row(catalog, namespace, table_commit.name.table, location)))


def _commit_single(catalog: Catalog, change: TableCommit) -> None:
    try:
        catalog.commit_table(change.table, change.requirements(), change.updates)
    except (CommitFailedException, TableAlreadyExistsError) as error:
        raise CommitConflict(f"the table {change.name} was changed concurrently") from error


def _commit_rest(catalog: RestCatalog, commits: Sequence[TableCommit]) -> None:
    requests = [
        CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace(list(change.name.namespace)), name=change.name.table),
            requirements=change.requirements(),
            updates=change.updates,
        ).model_dump_json()
        for change in commits
    ]
    response = post_multi_table_commit(catalog, f'{{"table-changes": [{", ".join(requests)}]}}'.encode())
    tables = ", ".join(str(change.name) for change in commits)
    if response.status_code == 409:
        raise CommitConflict(f"one of the tables {tables} was changed concurrently")
    if response.status_code in (404, 405, 501):
        raise no_common_commit(catalog.name)
    if response.status_code >= 500:
        raise CommitStateUnknownException(f"the catalog {catalog.name} returned {response.status_code} for {tables}")
    if not response.ok:
        raise CommitFailedException(f"the catalog {catalog.name} refuses to commit {tables}: {response.text[:500]}")
