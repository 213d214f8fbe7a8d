"""PostgreSQL tables: rows are loaded into a stage table of the same database and become visible in one transaction.

The fence is the row in ``saga_publication`` that the transaction first inserts or locks (see publication_table.py), so
there is no state to compare: a concurrent publish, revert or clean-up has left its record there. A publication creates
a missing table, and its undo drops that table if nothing else is in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
from psycopg import errors, sql

from saga_activities.session_settings import require_foreign_keys
from saga_spark.database_sessions import database_session
from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.postgresql.later_changes import check_not_changed_later, later_conflict
from saga_spark.sinks.postgresql.publication_table import (
    PublicationRow,
    create_publication_table,
    find_row,
    has_other_publications,
    insert_row,
    later_publications,
    publication_table_exists,
    update_row,
)
from saga_spark.sinks.postgresql.restoring_sql import column_changes, restoring_sql
from saga_spark.sinks.postgresql.table_checks import OVERWRITE_MODES, needs_rehearsal, row_problems, table_problems
from saga_spark.sinks.postgresql.tables import (
    PgConnection,
    TargetTable,
    check_table_name,
    create_table,
    database_message,
    describe_table,
    is_loaded,
    load_stage_table,
    stage_table_name,
    stage_table_prefix,
)
from saga_spark.sinks.postgresql.undo_images import (
    TO_DO,
    TableChange,
    constraint_conflict,
    may_overlap,
    retyped_columns,
)
from saga_spark.sinks.sink import (
    CommitConflict,
    Publication,
    Published,
    UndoConflict,
    refuse_other_manifest,
)
from sagas.builtins.spark import PUBLISH_TIMEOUT
from sagas.errors import InfrastructureError, Rejected, UsageError

MODES = ("append", "overwrite", "overwrite_where", "merge")
CONNECT_TIMEOUT = 5
"""Seconds after which an unresponsive server counts as down."""

TRANSACTION_TIMEOUTS = {
    "statement_timeout": f"{PUBLISH_TIMEOUT:.0f}s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "30s",
}
"""No transaction outlives its attempt: the server ends suspended ones, so that they do not block others."""

LOAD_TIMEOUTS = {**TRANSACTION_TIMEOUTS, "statement_timeout": "0"}
"""Loading a stage table may take as long as the step: it blocks no one, because each manifest has its own table."""


class PostgreSqlSink:
    """Implements :class:`~saga_spark.sinks.sink.Sink`."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        if output.mode not in MODES:
            raise UsageError(
                f"the output {output.name} is a PostgreSQL table, which does not support the mode {output.mode}",
                help="mode: overwrite_where with `where` replaces a part of the table",
            )
        check_table_name(f"the output {output.name}", output.destination)
        self._url(output)

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Raises UsageError."""
        names = sorted({str(output.connection) for output in outputs})
        if len(names) > 1:
            raise UsageError(
                f"no single commit can span the connections {' and '.join(names)}; remove `publish: together`"
            )

    def check(self, publication: Publication) -> list[str]:
        """Problems with permissions, columns, types and keys. Raises InfrastructureError."""
        with self._session(publication.output) as connection:
            table = describe_table(connection, publication.output.destination)
            return table_problems(connection, table, publication.output, publication.manifest)

    def prepare(self, publication: Publication) -> None:
        """Load the stage table. Raises Rejected if the table would refuse the rows; InfrastructureError."""
        try:
            with self._session(publication.output, LOAD_TIMEOUTS) as connection:
                create_publication_table(connection)
                # Serialises attempts with the same manifest: the second one finds the work done.
                connection.execute(
                    "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext(%s)::bigint)",
                    (stage_table_name(publication),),
                )
                if not is_loaded(connection, publication):
                    self._load(connection, publication)
                connection.commit()
        except CommitConflict as error:
            raise InfrastructureError(str(error)) from error

    def read_state(self, publications: Sequence[Publication]) -> None:
        """Nothing to read: see the module docstring."""

    def publish(self, publications: Sequence[Publication], state: None, *, together: bool) -> list[Published]:
        """One transaction for all, or one per publication. Raises CommitConflict; Rejected if rows are refused."""
        return self._in_transactions(publications, together, self._publish)

    def revert(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """One transaction for all, or one per publication. Raises UndoConflict, CommitConflict."""
        return self._in_transactions(publications[::-1], together, self._revert_publication)[::-1]

    def close(self, publication: Publication) -> None:
        with self._session(publication.output) as connection:
            row = find_row(connection, publication.tag.target, lock=True)
            if row is not None and row.state == "PUBLISHED":
                update_row(connection, publication, "CLOSED", None, row.details)
                connection.commit()

    def find(self, output: Output, target: Target) -> Published | None:
        with self._session(output) as connection:
            row = find_row(connection, target) if publication_table_exists(connection) else None
        return _adopted_publication(row) if row is not None and row.state == "PUBLISHED" else None

    def clean_up(self, publication: Publication) -> None:
        """Drop the stage tables of all attempts, and record DISCARDED so that this attempt and older ones cannot
        publish.

        Raises CommitConflict if the publication is visible.
        """
        target = publication.tag.target
        with self._session(publication.output) as connection:
            if publication_table_exists(connection) and not insert_row(connection, publication, "DISCARDED"):
                row = find_row(connection, target, lock=True)
                assert row is not None
                if row.state == "PUBLISHED":
                    raise CommitConflict(
                        f"the output is visible in {publication.output.destination}; revert it before its clean-up"
                    )
                if row.state == "DISCARDED" and row.epoch < publication.tag.epoch:
                    update_row(connection, publication, "DISCARDED", None, {})
            _drop_stage_tables(connection, target)
            connection.commit()

    def drop_undo_data(self, publication: Publication) -> None:
        """Drop what is kept only for an undo, once no undo can follow."""
        with self._session(publication.output) as connection:
            table = describe_table(connection, publication.output.destination)
            TableChange(connection, publication.tag.target, table, publication.output.mode, ()).drop_images()
            connection.commit()

    def _load(self, connection: PgConnection, publication: Publication) -> None:
        table = describe_table(connection, publication.output.destination)
        load_stage_table(connection, publication, table)
        columns = set(_column_names(publication))
        problems = row_problems(connection, table, publication.output, stage_table_name(publication), columns)
        if problems:
            raise Rejected(
                f"the table {table.qualified_name} does not accept the rows: {'; '.join(problems)}", problems=problems
            )
        if table.oid is not None and needs_rehearsal(connection, table, columns):
            self._rehearse(connection, publication, table)

    def _rehearse(self, connection: PgConnection, publication: Publication, table: TargetTable) -> None:
        """Publish the rows, undo that, and roll back. Raises Rejected if the table refuses the rows or their undo."""
        problem = f"the table {table.qualified_name} does not accept the rows"
        try:
            with connection.transaction(force_rollback=True):
                _lock_table(connection, table, _lock_mode(publication.output))
                change, _ = _apply(connection, publication, table)
                connection.execute("set constraints all immediate")
                problem = f"the publication to {table.qualified_name} could not be undone"
                change.revert()
                connection.execute("set constraints all immediate")
        except (errors.OperationalError, errors.InterfaceError, errors.InternalError):
            raise
        except UndoConflict as error:
            raise Rejected(f"{problem}: {error}", report=error.report) from error
        except psycopg.Error as error:
            raise Rejected(f"{problem}: {database_message(error)}") from error

    def _publish(self, connection: PgConnection, publication: Publication) -> Published:
        create_publication_table(connection)
        if not insert_row(connection, publication, "PUBLISHED"):
            adopted = _find_existing_publication(connection, publication)
            if adopted is not None:
                return adopted
        output, target = publication.output, publication.tag.target
        table = describe_table(connection, output.destination)
        if table.oid is not None:
            _lock_table(connection, table, _lock_mode(output))
            table = describe_table(connection, output.destination)  # locked against changes from here on
        # The table may have changed since the audit; an insert would silently round values into a narrower column.
        problems = table_problems(connection, table, output, publication.manifest)
        if problems:
            raise Rejected(
                f"the table {table.qualified_name} no longer accepts the rows: {'; '.join(problems)}", problems=problems
            )
        if not is_loaded(connection, publication):
            load_stage_table(connection, publication, table)
        created = table.oid is None
        if created:
            table = create_table(connection, table, publication.manifest.schema, output.key)
        change, details = _apply(connection, publication, table)
        _drop_stage_tables(connection, target)
        columns = [[column.name, column.declared] for column in table.columns]
        undo = {"columns": columns, "key": list(change.key), "created": created}
        position = update_row(connection, publication, "PUBLISHED", table, {**details, **undo})
        return Published(None, position, details=details)

    def _revert_publication(self, connection: PgConnection, publication: Publication) -> Published:
        create_publication_table(connection)
        target = publication.tag.target
        if insert_row(connection, publication, "REVERTED"):
            return Published(None, None, details={"was_published": False})
        row = find_row(connection, target, lock=True)
        assert row is not None
        if row.state != "PUBLISHED":
            update_row(connection, publication, "REVERTED", None, row.details)
            return Published(None, None, details={"was_published": False})
        table = describe_table(connection, publication.output.destination)
        retyped = retyped_columns(table, row.details["columns"])
        change = TableChange(connection, target, table, publication.output.mode, tuple(row.details["key"]), retyped)
        try:
            with connection.transaction():
                details = self._revert_rows(publication, row, change)
        except UndoConflict as error:
            error.target = target
            error.by_hand = error.by_hand or restoring_sql(change)
            raise
        position = update_row(connection, publication, "REVERTED", table, details)
        return Published(row.position, position, details={"was_published": True, **details})

    def _revert_rows(self, publication: Publication, row: PublicationRow, change: TableChange) -> dict[str, Any]:
        """Restore the rows; returns what the row in ``saga_publication`` keeps of it. Raises UndoConflict."""
        connection, table, created = change.connection, change.table, row.details["created"]
        changes = column_changes(row.details["columns"], table)
        report = {"table": table.qualified_name, "columns": changes}
        if table.oid is None:
            raise UndoConflict(f"the table {table.qualified_name} has been dropped since the publication", report)
        if table.column_names != [name for name, _ in row.details["columns"]]:
            raise UndoConflict(
                f"the columns of {table.qualified_name} have changed since the publication: "
                f"{', '.join(changes)}; {TO_DO}",
                report,
            )
        _lock_table(connection, table, "access exclusive" if created else "share row exclusive")
        _check_not_overwritten(connection, publication, row, table)
        try:
            check_not_changed_later(change, row)
            details: dict[str, Any] = dict(change.revert())
            connection.execute("set constraints all immediate")
        except psycopg.IntegrityError as error:
            raise constraint_conflict(table, error) from error
        except (UndoConflict, psycopg.DataError, psycopg.ProgrammingError) as error:
            own = isinstance(error, UndoConflict)
            if not changes or (own and error.by_hand):
                raise
            problem = str(error) if own else f"the rows of {table.qualified_name} do not fit its columns; {TO_DO}"
            raise UndoConflict(
                f"{problem}; columns have changed since the publication: {', '.join(changes)}",
                {**report, **(error.report if own else {"detail": database_message(error)})},
            ) from error
        change.drop_images()
        _drop_stage_tables(connection, change.target)
        if created and not has_other_publications(connection, row):
            details["dropped"] = _drop_if_empty(connection, table)
        return details

    def _in_transactions(
        self,
        publications: Sequence[Publication],
        together: bool,
        work: Callable[[PgConnection, Publication], Published],
    ) -> list[Published]:
        groups = [list(publications)] if together else [[publication] for publication in publications]
        done: list[Published] = []
        for group in groups:
            if len({publication.output.connection for publication in group}) > 1:
                raise UsageError("tables of several databases cannot be published together; remove `publish: together`")
            if group:
                with self._session(group[0].output) as connection:
                    done += [work(connection, publication) for publication in group]
                    connection.commit()
        return done

    def _url(self, output: Output) -> str:
        assert output.connection is not None
        url = self._settings.connection(output.connection)
        if not url.startswith(("postgresql://", "postgres://")):
            raise UsageError(
                f"the connection {output.connection} of the output {output.name} is not a PostgreSQL database"
            )
        return url

    @contextmanager
    def _session(self, output: Output, timeouts: Mapping[str, str] = TRANSACTION_TIMEOUTS) -> Iterator[PgConnection]:
        """A connection with an open transaction, which is rolled back unless committed.

        Raises CommitConflict if others hold the locks; InfrastructureError for server errors; Rejected for permanent
        ones.
        """
        url = self._url(output)
        assert output.connection is not None
        trusted = self._settings.trusted_roles.get(output.connection, ())
        options = {"connect_timeout": CONNECT_TIMEOUT, "application_name": f"saga-sink-{os.getpid()}"}
        try:
            # The hash of a row is that of its text, which must not depend on the settings of a role.
            with database_session(url, output.connection, trusted, **options) as connection:
                for setting, value in timeouts.items():
                    connection.execute("select set_config(%s, %s, false)", (setting, value))
                require_foreign_keys(connection)
                connection.commit()  # a later rollback would undo the settings
                try:
                    yield connection
                finally:
                    if not connection.closed:
                        connection.rollback()
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
            raise CommitConflict(f"{output.destination}: {database_message(error)}") from error
        except (errors.DuplicateTable, errors.UniqueViolation) as error:
            if error.diag.table_name and not error.diag.table_name.startswith("pg_"):
                raise Rejected(f"{output.destination}: {database_message(error)}") from error
            raise CommitConflict(f"{output.destination}: another attempt is creating the same table") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise InfrastructureError(
                f"the database of the connection {output.connection} does not answer: {database_message(error)}"
            ) from error
        except psycopg.Error as error:
            raise Rejected(f"{output.destination}: {database_message(error)}") from error


def _apply(
    connection: PgConnection, publication: Publication, table: TargetTable
) -> tuple[TableChange, dict[str, Any]]:
    """Write the loaded rows. Raises Rejected."""
    output = publication.output
    key = output.key if output.mode == "merge" else table.key
    change = TableChange(connection, publication.tag.target, table, output.mode, key)
    stage, columns = stage_table_name(publication), _column_names(publication)
    return change, dict(change.apply(stage, columns, output, publication.manifest.rows))


def _lock_mode(output: Output) -> Literal["row exclusive", "share row exclusive"]:
    return "row exclusive" if output.mode == "append" else "share row exclusive"


def _find_existing_publication(connection: PgConnection, publication: Publication) -> Published | None:
    """The publication if it already exists; None if this attempt is to publish. Raises CommitConflict, Rejected."""
    tag = publication.tag
    row = find_row(connection, tag.target, lock=True)
    assert row is not None
    if row.state == "PUBLISHED":
        report = {"found_in_sink": row.manifest, "expected": tag.sha, "epoch": row.epoch}
        refuse_other_manifest(row.manifest, publication, **report)
        return _adopted_publication(row)
    if row.state in ("REVERTED", "CLOSED") or row.epoch >= tag.epoch:
        raise CommitConflict(f"the output {tag.target.output} of {tag.target.step} was reverted concurrently")
    return None


def _check_not_overwritten(
    connection: PgConnection, publication: Publication, published_row: PublicationRow, table: TargetTable
) -> None:
    """Check that what an overwrite has replaced can be restored: only if it was not overwritten again."""
    output = publication.output
    if output.mode not in OVERWRITE_MODES:
        return
    where = output.where if output.mode == "overwrite_where" else {}
    later = [
        row
        for row in later_publications(connection, published_row)
        if row["mode"] in OVERWRITE_MODES and may_overlap(connection, table, where, row["conditions"])
    ]
    if later:
        raise later_conflict(table.qualified_name, "{} was overwritten by later publications: {}", later)


def _adopted_publication(row: PublicationRow) -> Published:
    counts = {name: row.details[name] for name in ("inserted", "deleted", "updated") if name in row.details}
    return Published(None, row.position, adopted=True, details=counts)


def _lock_table(
    connection: PgConnection,
    table: TargetTable,
    mode: Literal["row exclusive", "share row exclusive", "access exclusive"],
) -> None:
    """Lock the table until the end of the transaction.

    "row exclusive" prevents ALTER TABLE, "share row exclusive" also blocks other writers, "access exclusive" also
    readers (where the table may be dropped).
    """
    connection.execute(sql.SQL("lock table {} in " + mode + " mode").format(table.sql))


def _drop_if_empty(connection: PgConnection, table: TargetTable) -> bool:
    """Drop the table if it has no rows and nothing else depends on it."""
    row = connection.execute(sql.SQL("select exists (select from {})").format(table.sql)).fetchone()
    if row is None or row[0]:
        return False
    try:
        with connection.transaction():
            connection.execute(sql.SQL("drop table {}").format(table.sql))
    except errors.DependentObjectsStillExist:
        return False
    return True


def _drop_stage_tables(connection: PgConnection, target: Target) -> None:
    names = connection.execute(
        "select relname from pg_class where relkind = 'r'"
        " and relnamespace = pg_catalog.to_regnamespace(current_schema()::text)::oid "
        "and starts_with(relname, %s)",
        (stage_table_prefix(target),),
    ).fetchall()
    for (name,) in names:
        connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(name)))


def _column_names(publication: Publication) -> list[str]:
    return [field["name"] for field in publication.manifest.schema["fields"]]
