"""Iceberg tables: staged Parquet files become data files of the table, in one commit whose snapshot has the commit tag.

Publishing compares the table with what was read before (see commit.py) and does not retry: a conflict is for the
caller to resolve. The first publication creates a missing table from its schema. Reverting it leaves an empty table,
because a publisher that was suspended before its first commit could create a dropped table again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from saga_spark.job.job_spec import Output
from saga_spark.job_errors import first_line
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.column_names import column_name_problems
from saga_spark.sinks.iceberg import data_files
from saga_spark.sinks.iceberg.catalog import (
    TableName,
    can_commit_together,
    load_table,
    no_common_commit,
    open_catalog,
    planned_location,
    translate_errors,
)
from saga_spark.sinks.iceberg.commit import commit
from saga_spark.sinks.iceberg.compatibility import (
    COMPACTION_ADVICE,
    compatibility_problems,
    has_equality_deletes,
    partition_spec,
    staged_schema,
)
from saga_spark.sinks.iceberg.copy_on_write import key_problems, where_problems
from saga_spark.sinks.iceberg.snapshot_history import (
    NO_PRE_IMAGE,
    PRE_IMAGE,
    ever_committed,
    summary_properties,
    visible_snapshot,
    was_reverted,
)
from saga_spark.sinks.iceberg.table_draft import TableDraft
from saga_spark.sinks.sink import CommitConflict, Publication, Published, UndoConflict, refuse_other_manifest
from saga_spark.storage import resolve_uri
from sagas.builtins.spark import MULTI_TABLE_COMMIT, commits_together
from sagas.errors import UsageError
from sagas.text.shortening import counted


class IcebergSink:
    """All tables of all catalogs of a project. Implements :class:`~saga_spark.sinks.sink.Sink`."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        self._settings.catalog(TableName.parse(output.destination).catalog)

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """All tables must be in one catalog with multi-table transactions. Raises UsageError, InfrastructureError."""
        names = sorted({TableName.parse(output.destination).catalog for output in outputs})
        if len(names) > 1:
            raise UsageError(
                f"no single commit can span the catalogs {' and '.join(names)}; remove `publish: together`"
            )
        for name in names:
            properties = self._settings.catalog(name)
            if properties.get("type") == "rest" and not commits_together(properties):
                raise UsageError(
                    f"the server of the catalog {name} may commit table by table; set {MULTI_TABLE_COMMIT} = true in "
                    f"[catalogs.{name}] if it commits all tables or none, or remove `publish: together`"
                )
            with translate_errors(f"[catalogs.{name}]"):
                if not can_commit_together(self._open_catalog(name)):
                    raise no_common_commit(name)

    def check(self, publication: Publication) -> list[str]:
        with translate_errors(publication.output.destination):
            return self._find_problems(publication)

    def _find_problems(self, publication: Publication) -> list[str]:
        output, manifest = publication.output, publication.manifest
        if problems := column_name_problems("iceberg", manifest.schema):
            return problems
        table_name = TableName.parse(output.destination)
        catalog = self._open_catalog(table_name.catalog)
        table = load_table(catalog, table_name)
        try:
            metadata = (
                table.metadata
                if table
                else self._planned_metadata(catalog, table_name, staged_schema(manifest), output)
            )
            problems = compatibility_problems(metadata, publication)
        except ValueError as error:
            return [str(error)]
        if problems:
            return problems
        io = self._file_io(catalog, table)
        head = metadata.current_snapshot()
        if output.mode != "append" and head is not None and has_equality_deletes(io, head):
            problems.append(f"the table {output.destination} has equality deletes; {COMPACTION_ADVICE}")
        uris = [file.uri for file in manifest.files if file.rows]
        for column, number in sorted(set(data_files.staged_field_ids(uris))):
            if number != metadata.schema().find_field(column).field_id:
                problems.append(
                    f"the column {column} of the files has the field id {number}, which belongs to another column"
                )
        if output.mode == "overwrite_where":
            problems += where_problems(manifest, metadata.schema(), output.where)
        if output.mode == "merge":
            problems += key_problems(manifest, metadata.schema(), output.key)
        try:
            rows = sum(data_files.to_data_file(metadata, uri, *resolve_uri(uri)).record_count for uri in uris)
            if rows != manifest.rows:
                problems.append(
                    f"the staged files have {counted(rows, 'row')}, but their manifest says {manifest.rows}"
                )
        except ValueError as error:
            problems.append(first_line(error))
        if metadata.location:
            problems += data_files.space_problems(io, metadata.location, publication)
        return problems

    def prepare(self, publication: Publication) -> None:
        """Link or copy the files; left to publish if only a REST catalog can decide the location of a new table."""
        table_name = TableName.parse(publication.output.destination)
        with translate_errors(publication.output.destination):
            catalog = self._open_catalog(table_name.catalog)
            table = load_table(catalog, table_name)
            location = table.metadata.location if table else planned_location(catalog, table_name)
            if location is not None:
                data_files.place_files(self._file_io(catalog, table), location, publication)

    def read_state(self, publications: Sequence[Publication]) -> Any:
        """The exact metadata of each table by its name; None if the table does not exist."""
        state: dict[str, str | None] = {}
        for table_name in {TableName.parse(publication.output.destination) for publication in publications}:
            with translate_errors(str(table_name)):
                table = load_table(self._open_catalog(table_name.catalog), table_name)
            state[str(table_name)] = table.metadata_location if table else None
        return state

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """Raises CommitConflict, InfrastructureError; Rejected if another manifest is published or files are gone."""

        def find_existing(publication: Publication, table: Table | None, table_name: TableName) -> Published | None:
            target = publication.tag.target
            if table is not None:
                if (existing := _existing_publication(table.metadata, target, table_name)) is not None:
                    manifest = existing.details["manifest"]
                    refuse_other_manifest(manifest, publication, there=manifest, ours=publication.tag.sha)
                    return existing
                if was_reverted(table.metadata, target):
                    raise CommitConflict(f"{target.step} has been reverted in the table {table_name}")
            if (table.metadata_location if table else None) != state.get(str(table_name)):
                raise CommitConflict(f"the table {table_name} was changed concurrently")
            return None

        return self._commit(publications, together, TableDraft.publish, find_existing)

    def revert(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        return self._commit(publications[::-1], together, TableDraft.revert, lambda *_: None)[::-1]

    def _commit(
        self,
        publications: Sequence[Publication],
        together: bool,
        write: Callable[[TableDraft, Publication], Published],
        find_existing: Callable[[Publication, Table | None, TableName], Published | None],
    ) -> list[Published]:
        """Write each publication that ``find_existing`` does not find; ``together``: in one commit for all of them."""
        done: list[Published] = []
        for group in [publications] if together else [[publication] for publication in publications]:
            with translate_errors(", ".join(publication.output.destination for publication in group)):
                done += self._commit_group(group, write, find_existing)
        return done

    def _commit_group(
        self,
        group: Sequence[Publication],
        write: Callable[[TableDraft, Publication], Published],
        find_existing: Callable[[Publication, Table | None, TableName], Published | None],
    ) -> list[Published]:
        done: list[Published] = []
        catalogs = {
            name: self._open_catalog(name)
            for name in {TableName.parse(publication.output.destination).catalog for publication in group}
        }
        if len(catalogs) > 1:
            raise UsageError(
                f"no single commit can span the catalogs {', '.join(sorted(catalogs))}; remove `publish: together`"
            )
        [catalog] = catalogs.values()
        tables: dict[TableName, Table | None] = {}
        drafts: dict[TableName, TableDraft] = {}
        try:
            for publication in group:
                table_name = TableName.parse(publication.output.destination)
                if table_name not in tables:
                    tables[table_name] = load_table(catalog, table_name)
                published = find_existing(publication, tables[table_name], table_name)
                if published is None:
                    if table_name not in drafts:
                        drafts[table_name] = TableDraft.begin(catalog, table_name, tables[table_name], publication)
                    try:
                        published = write(drafts[table_name], publication)
                    except UndoConflict as error:
                        error.target = publication.tag.target
                        raise
                done.append(published)
            changes = [draft.to_commit() for draft in drafts.values()]
        except BaseException:
            _abandon_all(drafts)
            raise
        try:
            if changes:
                commit(catalog, changes)
        except CommitConflict:  # after any other error it is unknown whether the files are in use
            _abandon_all(drafts)
            raise
        return done

    def close(self, publication: Publication) -> None:
        """Nothing to record: an undo compares the files of its partitions."""

    def find(self, output: Output, target: Target) -> Published | None:
        table_name = TableName.parse(output.destination)
        with translate_errors(output.destination):
            table = load_table(self._open_catalog(table_name.catalog), table_name)
        return None if table is None else _existing_publication(table.metadata, target, table_name)

    def clean_up(self, publication: Publication) -> None:
        """Keeps the files of a committed publication: they belong to the table's history until snapshots expire."""
        table_name, target = TableName.parse(publication.output.destination), publication.tag.target
        with translate_errors(publication.output.destination):
            catalog = self._open_catalog(table_name.catalog)
            table = load_table(catalog, table_name)
            if table is not None and ever_committed(table.metadata, target):
                return
            location = table.metadata.location if table else planned_location(catalog, table_name)
            if location is not None:
                data_files.remove_files(self._file_io(catalog, table), location, target)

    def drop_undo_data(self, publication: Publication) -> None:
        """Allow the pre-image to expire, and delete rows that were rolled back. Raises CommitConflict (retryable).

        Call it for what was published, or published and reverted, once no undo can follow.
        """
        table_name, target = TableName.parse(publication.output.destination), publication.tag.target
        with translate_errors(publication.output.destination):
            catalog = self._open_catalog(table_name.catalog)
            table = load_table(catalog, table_name)
            if table is None:
                return
            draft = TableDraft.begin(catalog, table_name, table, publication)
            if draft.drop_undo_data(target):
                commit(catalog, [draft.to_commit()])
            if not ever_committed(draft.metadata, target):
                data_files.remove_files(table.io, table.metadata.location, target)

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_catalog(self, name: str) -> Catalog:
        return open_catalog(self._settings, name)

    def _file_io(self, catalog: Catalog, table: Table | None) -> FileIO:
        return table.io if table else load_file_io(catalog.properties, catalog.properties.get("warehouse"))

    def _planned_metadata(
        self, catalog: Catalog, table_name: TableName, schema: Schema, output: Output
    ) -> TableMetadata:
        """The table as the first publication would create it."""
        return new_table_metadata(
            location=planned_location(catalog, table_name) or "",
            schema=schema,
            partition_spec=partition_spec(schema, output.partition_by),
            sort_order=UNSORTED_SORT_ORDER,
        )


def _abandon_all(drafts: Mapping[TableName, TableDraft]) -> None:
    for draft in drafts.values():
        draft.abandon()


def _existing_publication(metadata: TableMetadata, target: Target, table_name: TableName) -> Published | None:
    snapshot = visible_snapshot(metadata, target)
    if snapshot is None:
        return None
    summary = summary_properties(snapshot)
    before = summary.get(PRE_IMAGE, NO_PRE_IMAGE)
    return Published(
        before=None if before == NO_PRE_IMAGE else int(before),
        after=snapshot.snapshot_id,
        adopted=True,
        details={
            "table": str(table_name),
            "epoch": summary.get("saga.epoch"),
            "manifest": summary.get("saga.manifest"),
        },
    )
