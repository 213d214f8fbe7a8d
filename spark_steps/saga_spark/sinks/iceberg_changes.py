"""The next metadata of a table: with a publication in it, or with one taken back. Nothing here is visible yet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import CreateTableTransaction, StagedTable, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

from saga_spark.keys import Target
from saga_spark.sinks import iceberg_files as files
from saga_spark.sinks import iceberg_history as history
from saga_spark.sinks.iceberg_catalogs import Change, Place, planned_location
from saga_spark.sinks.iceberg_fit import misfits
from saga_spark.sinks.iceberg_rows import replaced
from saga_spark.sinks.iceberg_schema import partition_spec, staged_schema
from saga_spark.sinks.sink import NotOurs, Publication, Published
from sagas.errors import Rejected


@dataclass(slots=True)
class Draft:
    """Changes to one table, one on top of the other, that become one commit."""

    place: Place
    transaction: Transaction
    creates: bool
    written: list[str]

    @staticmethod
    def begin(catalog: Catalog, place: Place, table: Table | None, first: Publication) -> Draft:
        """``table`` None: it is made from the schema of the first publication."""
        if table is not None:
            return Draft(place, table.transaction(), False, [])
        schema = staged_schema(first.manifest)
        spec = partition_spec(schema, first.output.partition_by)
        location = planned_location(catalog, place)
        if location is None:
            catalog.create_namespace_if_not_exists(place.namespace)
            return Draft(place, catalog.create_table_transaction(place.identifier, schema, None, spec), True, [])
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location)
        io = load_file_io(catalog.properties, location)
        staged = StagedTable(place.identifier, metadata, f"{location}/metadata", io, catalog)
        return Draft(place, CreateTableTransaction(staged), True, [])

    def change(self) -> Change:
        return Change(self.place, self.table, self.creates, self.transaction._updates)

    def abandon(self) -> None:
        """Remove what was written for a commit that is known not to be."""
        for producer in self.transaction._snapshot_producers:
            producer._clean_all_uncommitted()
        for file in self.written:
            self.table.io.delete(file)

    @property
    def table(self) -> Table:
        return self.transaction._table

    @property
    def metadata(self) -> TableMetadata:
        """With all changes so far."""
        return self.transaction.table_metadata

    # ── publish ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, publication: Publication) -> Published:
        """One snapshot with the rows and the mark, and the tags that keep it and its pre-image from expiry.

        Raises Rejected: the table is no longer what it was in the audit, and does not take the rows.
        """
        target, io = publication.mark.target, self.table.io
        if problems := misfits(self.metadata, publication):
            raise self._refusal(publication, problems)
        location = self.table.metadata.location
        try:
            names = files.place(io, location, publication)
        except FileNotFoundError as error:
            name = publication.output.name
            raise Rejected(f"files of the output {name} are neither in the stage nor in {self.place}") from error
        self._map_names()
        metadata = self.metadata
        before = metadata.current_snapshot()
        home = files.folder(location, target) + "/rewritten"
        try:
            new = [files.data_file(metadata, name, *files.in_table(io, name)) for name in names]
            old = replaced(io, metadata, publication.output, publication.manifest, new, home)
        except (ValueError, NotImplementedError) as error:
            raise self._refusal(publication, [str(error).splitlines()[0]]) from error
        self.written += [file.file_path for file in old.rewritten]
        words = {
            **publication.mark.properties(),
            "saga.name": publication.mark.saga,
            history.BEFORE: str(before.snapshot_id) if before else history.NOTHING,
        }
        after = self._snapshot(words, added=[*new, *old.rewritten], gone=old.gone)
        if before is not None:
            self._tag(history.before_tag(target), before.snapshot_id)
        self._tag(history.after_tag(target), after)
        for name in history.outdated_tags(metadata, dt.datetime.now(dt.UTC)):
            self._untag(name)
        return Published(
            before=before.snapshot_id if before else None,
            after=after,
            details={
                "table": str(self.place),
                "rows": publication.manifest.rows,
                "files": len(new),
                "replaced_files": len(old.gone),
                "created": self.creates,
            },
        )

    def _refusal(self, publication: Publication, problems: Sequence[str]) -> Rejected:
        name = publication.output.name
        return Rejected(
            f"the table {self.place} does not take the output {name} any more: {problems[0]}", problems=list(problems)
        )

    def _map_names(self) -> None:
        """Spark's files carry no field ids: readers find the columns by this."""
        if self.metadata.name_mapping() is None:
            mapping = self.metadata.schema().name_mapping.model_dump_json()
            self.transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})

    # ── take back ───────────────────────────────────────────────────────────────────────────────────────────

    def take_back(self, publication: Publication) -> Published:
        """The pre-image where ours is the newest change, else the table without exactly our files. Raises NotOurs.

        There is always a new head, also when there is nothing to take back: a publisher that compares against what
        it read before fails.
        """
        target = publication.mark.target
        metadata = self.metadata
        head = metadata.current_snapshot()
        ours = history.visible(metadata, target)
        words = {history.TAKEN_BACK: target.name, "saga.id": target.saga_id, "saga.step": target.step}
        details: dict[str, Any] = {"table": str(self.place), "found": ours is not None}
        if ours is None:
            after = self._on_top(head, words)
        elif (standing := history.standing(metadata)) and standing.snapshot_id == ours.snapshot_id:
            after = self._roll_back(ours, words)
            details["how"] = "rolled back"
        else:
            after = self._snapshot(words, gone=self._removable(ours), operation=Operation.DELETE)
            details["how"] = "files removed"
        for name in (history.before_tag(target), history.after_tag(target)):
            if name in metadata.refs:
                self._untag(name)
        return Published(before=head.snapshot_id if head else None, after=after, details=details)

    def forget(self, target: Target) -> bool:
        """Drop what only an undo needs: our tags, and a snapshot of ours that was rolled back. False: there is none."""
        metadata = self.metadata
        for name in (history.before_tag(target), history.after_tag(target)):
            if name in metadata.refs:
                self._untag(name)
        gone = history.rolled_back(self.metadata, target)
        if gone:
            self.transaction._stage((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))
        return bool(self.transaction._updates)

    def _roll_back(self, ours: Snapshot, words: dict[str, str]) -> int:
        before = history.said(ours).get(history.BEFORE, history.NOTHING)
        if before == history.NOTHING:
            return self._on_top(None, words)
        image = self.metadata.snapshot_by_id(int(before))
        if image is not None:
            return self._on_top(image, words)
        # Somebody has removed the pre-image in spite of its tag. Without replaced files it is not needed.
        return self._snapshot(words, gone=self._removable(ours), operation=Operation.DELETE)

    def _removable(self, ours: Snapshot) -> list[DataFile]:
        """Our files, when all of them are live and nothing else was changed by us. Raises NotOurs."""
        metadata, io = self.metadata, self.table.io
        added, replaced_some = _changed_by(ours, io)
        head = metadata.current_snapshot()
        live = {
            entry.data_file.file_path
            for manifest in (head.manifests(io) if head else ())
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        }
        gone = [file for file in added if file.file_path not in live]
        if not replaced_some and not gone:
            return added
        later = history.after(metadata, ours)
        why = "it replaced rows" if replaced_some else f"{len(gone)} of its {len(added)} files are not live any more"
        who = f"{len(later)} later changes" if len(later) != 1 else "a later change"
        raise NotOurs(
            f"the publication in {self.place} cannot be taken back exactly: {why}, and there is {who}",
            {
                "table": str(self.place),
                "published": ours.snapshot_id,
                "before": history.said(ours).get(history.BEFORE),
                "after_ours": later,
            },
        )

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def _snapshot(
        self,
        words: dict[str, str],
        *,
        added: Sequence[DataFile] = (),
        gone: Sequence[DataFile] = (),
        operation: Operation = Operation.OVERWRITE,
    ) -> int:
        """One snapshot on top of the current one; its id."""
        if not gone:
            producer = self.transaction.update_snapshot(snapshot_properties=words).fast_append()
        else:
            producer = _OverwriteFiles(
                operation=operation, transaction=self.transaction, io=self.table.io, snapshot_properties=words
            )
            # The files are known by name; without this only manifests of their own partitions were looked at.
            producer.delete_by_predicate(AlwaysTrue())
        for file in gone:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
        producer.commit()
        return producer.snapshot_id

    def _on_top(self, image: Snapshot | None, words: dict[str, str]) -> int:
        """A new head with exactly the rows of ``image`` (None: no rows), whatever the head is now."""
        words = {**words, history.UNCHANGED: "true"}
        producer = self.transaction.update_snapshot(snapshot_properties=words).fast_append()
        producer._parent_snapshot_id = image.snapshot_id if image else None
        producer.commit()
        return producer.snapshot_id

    def _untag(self, name: str) -> None:
        self.transaction._stage((RemoveSnapshotRefUpdate.model_validate({"ref-name": name}),))

    def _tag(self, name: str, snapshot_id: int) -> None:
        update = SetSnapshotRefUpdate.model_validate(
            {
                "ref-name": name,
                "type": SnapshotRefType.TAG,
                "snapshot-id": snapshot_id,
                "max-ref-age-ms": int(history.TAG_AGE.total_seconds() * 1000),
            }
        )
        self.transaction._stage((update,))


def _changed_by(ours: Snapshot, io: Any) -> tuple[list[DataFile], bool]:
    """The files that a snapshot added, and whether it took away any."""
    added, took = [], False
    for manifest in ours.manifests(io):
        if manifest.added_snapshot_id != ours.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            if entry.snapshot_id == ours.snapshot_id:
                took = took or entry.status == ManifestEntryStatus.DELETED
                if entry.status == ManifestEntryStatus.ADDED:
                    added.append(entry.data_file)
    return added, took
