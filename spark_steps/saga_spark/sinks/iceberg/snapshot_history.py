"""Derives from a table's snapshots whether a publication is visible, what came after it, and what was before it.

A publication is one snapshot with the commit tag in its summary. Reverting it adds another snapshot: on top of the
pre-image if nothing else has changed since (the publication is then no longer an ancestor, so that snapshot expiry does
not treat the pre-image's files as deleted), else one that restores its partitions (own_files.py). Snapshots that change
no rows (the head of a rolled-back table, the fence of an undo that found nothing) are marked: they are not later
changes.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from saga_spark.manifest import Target

REVERTED = "saga.reverted"
UNCHANGED = "saga.unchanged"
PRE_IMAGE = "saga.before"
NO_PRE_IMAGE = "nothing"

TAG_PREFIX = "saga-"
TAG_MAX_AGE = dt.timedelta(days=30)
"""How long the pre-image and the publication are protected from expiry for an undo."""


def pre_image_tag(target: Target) -> str:
    return f"{TAG_PREFIX}{target.name}-before"


def publication_tag(target: Target) -> str:
    return f"{TAG_PREFIX}{target.name}"


def lineage(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The current snapshot and its ancestors, newest first."""
    return iter(ancestors_of(metadata.current_snapshot(), metadata))


def summary_properties(snapshot: Snapshot) -> dict[str, str]:
    """The properties of the summary, without the operation."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def is_publication_of(snapshot: Snapshot, target: Target) -> bool:
    properties = summary_properties(snapshot)
    return properties.get("saga.key") == target.publish_key and properties.get("saga.generation") == str(
        target.generation
    )


def visible_snapshot(metadata: TableMetadata, target: Target) -> Snapshot | None:
    """The snapshot that published the target, unless it was reverted."""
    oldest: Snapshot | None = None
    for snapshot in lineage(metadata):
        if summary_properties(snapshot).get(REVERTED) == target.name:
            return None
        if is_publication_of(snapshot, target):
            return snapshot
        oldest = snapshot
    # Expiry truncates the chain of ancestors. The publication's own snapshot is kept by its tag, which an undo removes.
    tag = metadata.refs.get(publication_tag(target))
    tagged = metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    if tagged is None or oldest is None or (tagged.sequence_number or 0) >= (oldest.sequence_number or 0):
        return None
    return tagged


def was_reverted(metadata: TableMetadata, target: Target) -> bool:
    return any(summary_properties(snapshot).get(REVERTED) == target.name for snapshot in lineage(metadata))


def row_changes_after(metadata: TableMetadata, ours: Snapshot) -> list[dict[str, Any]]:
    """The row changes after ``ours``, oldest first; ``name`` says who has made each of them, and when."""
    later = []
    for snapshot in lineage(metadata):
        if snapshot.snapshot_id == ours.snapshot_id:
            break
        if UNCHANGED not in summary_properties(snapshot):
            later.append(snapshot)
    return [
        {
            "snapshot": snapshot.snapshot_id,
            "time": dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC).isoformat(timespec="milliseconds"),
            "operation": snapshot.summary.operation.value if snapshot.summary else None,
            "summary": summary_properties(snapshot),
            "name": _change_name(snapshot),
        }
        for snapshot in reversed(later)
    ]


def _change_name(snapshot: Snapshot) -> str:
    properties = summary_properties(snapshot)
    at = dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    what = f"the snapshot {snapshot.snapshot_id} of {at}"
    if "saga.id" not in properties:
        return f"{what}, not of a saga"
    verb = "the undo of the step" if REVERTED in properties else "the step"
    return f"{what}, by {verb} {properties.get('saga.step')} of the saga {properties['saga.id']}"


def ever_committed(metadata: TableMetadata, target: Target) -> bool:
    """Return whether the table's history has a snapshot of the target, so that its files belong to the table."""
    return any(is_publication_of(snapshot, target) for snapshot in metadata.snapshots)


def rolled_back_snapshots(metadata: TableMetadata, target: Target) -> list[int]:
    """Snapshots of the target that are neither referenced nor the parent of another snapshot."""
    kept = {parent.snapshot_id for ref in metadata.refs.values() for parent in _ancestors(ref.snapshot_id, metadata)}
    parents = {snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if is_publication_of(snapshot, target) and snapshot.snapshot_id not in kept | parents
    ]


def _ancestors(snapshot_id: int, metadata: TableMetadata) -> Iterator[Snapshot]:
    return iter(ancestors_of(metadata.snapshot_by_id(snapshot_id), metadata))


def expired_tags(metadata: TableMetadata) -> list[str]:
    """Our tags that are past their maximum age: not every installation runs Iceberg's own expiry.

    They are by two clocks, that of the last commit and that of this machine: if one is ahead, it must not remove tags
    of others.
    """
    limit = min(metadata.last_updated_ms, time.time() * 1000) - TAG_MAX_AGE.total_seconds() * 1000
    return [
        name
        for name, ref in metadata.refs.items()
        if name.startswith(TAG_PREFIX)
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and (made := metadata.snapshot_by_id(ref.snapshot_id)) is not None
        and made.timestamp_ms < limit
    ]
