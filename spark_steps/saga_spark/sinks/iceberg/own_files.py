"""The files by which a publication can be reverted alone, and the later changes of its partitions that prevent it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from saga_spark.manifest import Target
from saga_spark.sinks.iceberg.partition_values import comparable
from saga_spark.sinks.iceberg.snapshot_history import (
    NO_PRE_IMAGE,
    PRE_IMAGE,
    pre_image_tag,
    publication_tag,
    row_changes_after,
    summary_properties,
    visible_snapshot,
)
from saga_spark.sinks.sink import UndoConflict
from sagas.text.shortening import counted, join_names

MAX_NAMED = 3
"""Later changes that a message names."""


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Data files that a snapshot added, and those that it deleted."""

    added: Sequence[DataFile]
    replaced: Sequence[DataFile]


def own_files(snapshot: Snapshot, io: FileIO) -> OwnFiles:
    changed = _changed_files(snapshot, io, ManifestContent.DATA)
    return OwnFiles(*([file for status, file in changed if status == wanted] for wanted in _CHANGES))


def files_changed_since(snapshot: Snapshot, metadata: TableMetadata, io: FileIO) -> dict[str, DataFile]:
    """Data and delete files by name that the head has and the snapshot has not, or the other way round."""
    head = metadata.current_snapshot()
    before, now = (
        {manifest.manifest_path: manifest for manifest in (each.manifests(io) if each else ())}
        for each in (snapshot, head)
    )
    were, are = (
        {
            entry.data_file.file_path: entry.data_file
            for path, manifest in manifests.items()
            if path not in shared
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        }
        for manifests, shared in ((before, now), (now, before))
    )
    return {name: (were | are)[name] for name in were.keys() ^ are.keys()}


def undo_problem(own: OwnFiles, changed: Mapping[str, DataFile], *, has_pre_image: bool) -> str | None:
    """The reason for which the publication cannot be reverted by its files alone, or None."""
    removed = [file for file in own.added if file.file_path in changed]
    if not own.replaced:
        live = counted(len(removed), f"of its {len(own.added)} files is", f"of its {len(own.added)} files are")
        return f"{live} no longer live" if removed else None
    if any(_share_partition(own, file) for file in changed.values()):
        return "it replaced rows"
    return None if has_pre_image else "it replaced rows, which have expired from the table's history"


def undo_conflict(
    table: str, ours: Snapshot, target: Target, problem: str, metadata: TableMetadata, io: FileIO
) -> UndoConflict:
    """The refusal, with the later changes in the partitions of the publication."""
    own = own_files(ours, io)
    later = [
        change
        for change in row_changes_after(metadata, ours)
        if (snapshot := metadata.snapshot_by_id(change["snapshot"])) is not None
        and any(_share_partition(own, file) for _, file in _changed_files(snapshot, io))
    ]
    if later:
        others = "later changes exist" if len(later) != 1 else "a later change exists"
        problem += f", and {others}: {join_names([change['name'] for change in later], MAX_NAMED)}"
    before = summary_properties(ours).get(PRE_IMAGE, NO_PRE_IMAGE)
    return UndoConflict(
        f"the publication in {table} cannot be reverted exactly: {problem}",
        {"table": table, "published": ours.snapshot_id, "before": before, "later_snapshots": later},
        by_hand=_by_hand(table, ours, before, target, metadata),
        later=[publisher for change in later if (publisher := _visible_publisher(change["summary"], metadata))],
    )


def _visible_publisher(summary: Mapping[str, str], metadata: TableMetadata) -> tuple[str, str] | None:
    """The saga id and the entry of a snapshot that is a publication and has not been reverted."""
    if "saga.key" not in summary:
        return None
    generation, output = int(summary["saga.generation"]), summary["saga.output"]
    target = Target(summary["saga.id"], summary["saga.step"], generation, output)
    return None if visible_snapshot(metadata, target) is None else (target.saga_id, target.step)


_CHANGES = (ManifestEntryStatus.ADDED, ManifestEntryStatus.DELETED)


def _changed_files(
    snapshot: Snapshot, io: FileIO, content: ManifestContent | None = None
) -> list[tuple[ManifestEntryStatus, DataFile]]:
    """The files that the snapshot itself added and deleted: data files, delete files, or both (None)."""
    return [
        (entry.status, entry.data_file)
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id and content in (None, manifest.content)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        if entry.snapshot_id == snapshot.snapshot_id and entry.status in _CHANGES
    ]


def _share_partition(own: OwnFiles, file: DataFile) -> bool:
    """True if rows of the file can be in a partition of the publication; partitions of two specs are not compared."""
    return any(
        mine.spec_id != file.spec_id or comparable(mine.partition) == comparable(file.partition)
        for mine in (*own.added, *own.replaced)
    )


def _by_hand(table: str, ours: Snapshot, before: str, target: Target, metadata: TableMetadata) -> str:
    """The advice about a publication whose rows others may have changed: where its rows and those before it are."""
    rows = f"the rows that it has written are those of the snapshot {ours.snapshot_id}"
    if publication_tag(target) in metadata.refs:
        rows += f" (tag {publication_tag(target)})"
    if before == NO_PRE_IMAGE:
        return f"{table} had no rows before the publication; {rows} without those of its parent: delete them"
    if metadata.snapshot_by_id(int(before)) is None:
        return (
            f"the rows of {table} before the publication have expired from its history: restore them from another "
            f"copy; {rows} that its parent did not have"
        )
    _, _, in_catalog = table.partition(".")
    reads = f'`catalog.load_table("{in_catalog}").scan(snapshot_id={before}).to_arrow()` of PyIceberg'
    return (
        f"the rows of {table} before the publication are the snapshot {before} (tag {pre_image_tag(target)}); {rows}: "
        f"compare them, with VERSION AS OF {before} in Spark or {reads}, then write what is to stay"
    )
