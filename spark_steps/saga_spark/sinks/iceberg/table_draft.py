"""Builds the next metadata of a table, with publications added or reverted. Nothing is visible before the commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.table import CreateTableTransaction, StagedTable, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from saga_spark.job_errors import first_line
from saga_spark.manifest import Target
from saga_spark.sinks.iceberg import data_files
from saga_spark.sinks.iceberg.catalog import TableName, planned_location
from saga_spark.sinks.iceberg.commit import TableCommit
from saga_spark.sinks.iceberg.compatibility import compatibility_problems, partition_spec, staged_schema
from saga_spark.sinks.iceberg.copy_on_write import find_replaced_files, rewrite_files
from saga_spark.sinks.iceberg.own_files import files_changed_since, own_files, undo_conflict, undo_problem
from saga_spark.sinks.iceberg.pyiceberg_internals import (
    append_after,
    delete_uncommitted_files,
    overwrite_files,
    pending_updates,
    transaction_table,
)
from saga_spark.sinks.iceberg.snapshot_history import (
    NO_PRE_IMAGE,
    PRE_IMAGE,
    REVERTED,
    TAG_MAX_AGE,
    UNCHANGED,
    expired_tags,
    pre_image_tag,
    publication_tag,
    rolled_back_snapshots,
    summary_properties,
    visible_snapshot,
)
from saga_spark.sinks.sink import Publication, Published
from sagas.errors import Rejected


@dataclass(slots=True)
class TableDraft:
    """A sequence of changes to one table that become one commit."""

    name: TableName
    transaction: Transaction
    creates_table: bool
    written_files: list[str]

    @staticmethod
    def begin(catalog: Catalog, name: TableName, table: Table | None, first: Publication) -> TableDraft:
        """Begin a draft of the table. ``table`` is None if it is created from the schema of the first publication."""
        if table is not None:
            return TableDraft(name, table.transaction(), False, [])
        schema = staged_schema(first.manifest)
        spec = partition_spec(schema, first.output.partition_by)
        location = planned_location(catalog, name)
        if location is None:
            catalog.create_namespace_if_not_exists(name.namespace)
            return TableDraft(name, catalog.create_table_transaction(name.identifier, schema, None, spec), True, [])
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location)
        io = load_file_io(catalog.properties, location)
        staged = StagedTable(name.identifier, metadata, f"{location}/metadata", io, catalog)
        return TableDraft(name, CreateTableTransaction(staged), True, [])

    def to_commit(self) -> TableCommit:
        return TableCommit(self.name, self.table, self.creates_table, pending_updates(self.transaction))

    def abandon(self) -> None:
        """Remove the files written for a commit that is known not to have happened."""
        delete_uncommitted_files(self.transaction)
        for file in self.written_files:
            self.table.io.delete(file)

    @property
    def table(self) -> Table:
        return transaction_table(self.transaction)

    @property
    def metadata(self) -> TableMetadata:
        """The metadata with all changes so far."""
        return self.transaction.table_metadata

    # ── publish ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, publication: Publication) -> Published:
        """Add one snapshot with the rows and the commit tag, and refs that protect it and its pre-image from expiry.

        Raises Rejected if the table has changed since the audit and no longer accepts the rows.
        """
        target, io = publication.tag.target, self.table.io
        if problems := compatibility_problems(self.metadata, publication):
            raise self._rejection(publication, problems)
        location = self.table.metadata.location
        try:
            names = data_files.place_files(io, location, publication)
        except FileNotFoundError as error:
            name = publication.output.name
            raise Rejected(f"files of the output {name} are neither in the stage area nor in {self.name}") from error
        self._set_name_mapping()
        metadata = self.metadata
        before = metadata.current_snapshot()
        rewrite_folder = data_files.publication_folder(location, target) + "/rewritten"
        try:
            new = [data_files.to_data_file(metadata, name, *data_files.resolve_table_file(io, name)) for name in names]
            replaced_files = find_replaced_files(
                io, metadata, publication.output, publication.manifest, new, rewrite_folder
            )
        except (ValueError, NotImplementedError) as error:
            raise self._rejection(publication, [first_line(error)]) from error
        self.written_files += [file.file_path for file in replaced_files.rewritten]
        summary = {
            **publication.tag.properties(),
            "saga.name": publication.tag.saga,
            PRE_IMAGE: str(before.snapshot_id) if before else NO_PRE_IMAGE,
        }
        after = self._add_snapshot(summary, added=[*new, *replaced_files.rewritten], removed=replaced_files.removed)
        if before is not None:
            self._add_tag(pre_image_tag(target), before.snapshot_id)
        self._add_tag(publication_tag(target), after)
        for name in expired_tags(metadata):
            self._remove_tag(name)
        return Published(
            before=before.snapshot_id if before else None,
            after=after,
            details={
                "table": str(self.name),
                "rows": publication.manifest.rows,
                "files": len(new),
                "replaced_files": len(replaced_files.removed),
                "created": self.creates_table,
            },
        )

    def _rejection(self, publication: Publication, problems: Sequence[str]) -> Rejected:
        name = publication.output.name
        return Rejected(
            f"the table {self.name} no longer accepts the output {name}: {problems[0]}", problems=list(problems)
        )

    def _set_name_mapping(self) -> None:
        """Spark's files have no field ids; readers map columns by this name mapping."""
        if self.metadata.name_mapping() is None:
            mapping = self.metadata.schema().name_mapping.model_dump_json()
            self.transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})

    # ── revert ──────────────────────────────────────────────────────────────────────────────────────────────────

    def revert(self, publication: Publication) -> Published:
        """Restore the pre-image if the table has the files that the publication left, else those of its partitions.

        Always creates a new head, even if there is nothing to revert, so that a publisher that compares against an
        earlier state fails. Raises UndoConflict.
        """
        target = publication.tag.target
        metadata = self.metadata
        head = metadata.current_snapshot()
        published = visible_snapshot(metadata, target)
        summary = {REVERTED: target.name, "saga.id": target.saga_id, "saga.step": target.step}
        details: dict[str, Any] = {"table": str(self.name), "was_published": published is not None}
        if published is None:
            after = self._add_snapshot_like(head, summary)
        else:
            after, details["how"] = self._revert_published(published, target, summary)
        for name in (pre_image_tag(target), publication_tag(target)):
            if name in metadata.refs:
                self._remove_tag(name)
        return Published(before=head.snapshot_id if head else None, after=after, details=details)

    def drop_undo_data(self, target: Target) -> bool:
        """Drop what only an undo needs: the tags, and a rolled-back snapshot. False if there is nothing to drop."""
        metadata = self.metadata
        for name in (pre_image_tag(target), publication_tag(target)):
            if name in metadata.refs:
                self._remove_tag(name)
        snapshot_ids = rolled_back_snapshots(self.metadata, target)
        if snapshot_ids:
            ExpireSnapshots(self.transaction).by_ids(snapshot_ids).commit()
        return bool(pending_updates(self.transaction))

    def _revert_published(self, published: Snapshot, target: Target, summary: dict[str, str]) -> tuple[int, str]:
        """The id of the new head, and how it reverts the publication. Raises UndoConflict.

        Replaced rows are written again: another engine's expiry of the publication's snapshot deletes the files that
        it replaced, also where they are in use again, and delete files do not apply to a file that is added again.
        """
        metadata, io = self.metadata, self.table.io
        before = summary_properties(published).get(PRE_IMAGE, NO_PRE_IMAGE)
        image = None if before == NO_PRE_IMAGE else metadata.snapshot_by_id(int(before))
        changed = files_changed_since(published, metadata, io)
        if not changed and (image is not None or before == NO_PRE_IMAGE):
            return self._add_snapshot_like(image, summary), "rolled back"
        own = own_files(published, io)
        if problem := undo_problem(own, changed, has_pre_image=image is not None):
            raise undo_conflict(str(self.name), published, target, problem, metadata, io)
        if not own.replaced:
            return self._add_snapshot(summary, removed=own.added, operation=Operation.DELETE), "files removed"
        assert image is not None
        folder = f"{data_files.publication_folder(self.table.metadata.location, target)}-restored"
        names = {file.file_path for file in own.replaced}
        restored = rewrite_files(io, metadata, image, names, folder)
        self.written_files += [file.file_path for file in restored]
        return self._add_snapshot(summary, added=restored, removed=own.added), "partitions restored"

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def _add_snapshot(
        self,
        summary: dict[str, str],
        *,
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        operation: Operation = Operation.OVERWRITE,
    ) -> int:
        """Add one snapshot on top of the current one; returns its id."""
        if not removed:
            producer = self.transaction.update_snapshot(snapshot_properties=summary).fast_append()
        else:
            producer = overwrite_files(self.transaction, self.table.io, operation, summary)
            # Files are deleted by name; without this predicate only manifests of their own partitions would be scanned.
            producer.delete_by_predicate(AlwaysTrue())
        for file in removed:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
        producer.commit()
        return producer.snapshot_id

    def _add_snapshot_like(self, image: Snapshot | None, summary: dict[str, str]) -> int:
        """Add a head with exactly the rows of ``image`` (None: no rows), whatever the current head is."""
        summary = {**summary, UNCHANGED: "true"}
        return append_after(self.transaction, image.snapshot_id if image else None, summary)

    def _remove_tag(self, name: str) -> None:
        ManageSnapshots(self.transaction).remove_tag(name).commit()

    def _add_tag(self, name: str, snapshot_id: int) -> None:
        max_age_ms = int(TAG_MAX_AGE.total_seconds() * 1000)
        ManageSnapshots(self.transaction).create_tag(snapshot_id, name, max_ref_age_ms=max_age_ms).commit()
