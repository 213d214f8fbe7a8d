"""What a table's snapshots say about a publication: is it visible, who came after it, what was before it.

A publication is one snapshot with the mark in its summary. Taking it back is one more snapshot: on top of the
pre-image when ours is the newest (then ours is no ancestor any more, so that the expiry of snapshots never takes the
files of the pre-image for deleted ones), else one that deletes exactly our files. A snapshot that changes no row (the
top of a rolled back table, the fence of an undo that found nothing) says so and does not count as "after us".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from saga_spark.manifest import Target

REVERTED = "saga.taken-back"
UNCHANGED = "saga.unchanged"
PRE_IMAGE = "saga.before"
NO_PRE_IMAGE = "nothing"

TAG_PREFIX = "saga-"
TAG_MAX_AGE = dt.timedelta(days=30)
"""How long the pre-image and the publication are kept from expiry, so that an undo finds them."""


def pre_image_tag(target: Target) -> str:
    return f"{TAG_PREFIX}{target.name}-before"


def publication_tag(target: Target) -> str:
    return f"{TAG_PREFIX}{target.name}"


def lineage(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The current snapshot and its ancestors, the newest first."""
    return iter(ancestors_of(metadata.current_snapshot(), metadata))


def summary_properties(snapshot: Snapshot) -> dict[str, str]:
    """The summary's own words, beside the operation."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def is_publication_of(snapshot: Snapshot, target: Target) -> bool:
    properties = summary_properties(snapshot)
    return properties.get("saga.key") == target.publish_key and properties.get("saga.generation") == str(
        target.generation
    )


def visible_snapshot(metadata: TableMetadata, target: Target) -> Snapshot | None:
    """The snapshot that published the target and was not taken back since."""
    oldest: Snapshot | None = None
    for snapshot in lineage(metadata):
        if summary_properties(snapshot).get(REVERTED) == target.name:
            return None
        if is_publication_of(snapshot, target):
            return snapshot
        oldest = snapshot
    # Expiry cuts the line of ancestors. Ours is kept by its tag, which an undo removes.
    tag = metadata.refs.get(publication_tag(target))
    ours = metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    if ours is None or oldest is None or (ours.sequence_number or 0) >= (oldest.sequence_number or 0):
        return None
    return ours


def was_reverted(metadata: TableMetadata, target: Target) -> bool:
    return any(summary_properties(snapshot).get(REVERTED) == target.name for snapshot in lineage(metadata))


def last_row_change(metadata: TableMetadata) -> Snapshot | None:
    """The newest snapshot that changed rows."""
    return next((one for one in lineage(metadata) if UNCHANGED not in summary_properties(one)), None)


def row_changes_after(metadata: TableMetadata, ours: Snapshot) -> list[dict[str, Any]]:
    """Who changed rows after ours, the oldest first: for people."""
    later = []
    for snapshot in lineage(metadata):
        if snapshot.snapshot_id == ours.snapshot_id:
            break
        if UNCHANGED not in summary_properties(snapshot):
            later.append(snapshot)
    return [
        {
            "snapshot": one.snapshot_id,
            "time": dt.datetime.fromtimestamp(one.timestamp_ms / 1000, dt.UTC).isoformat(timespec="milliseconds"),
            "operation": one.summary.operation.value if one.summary else None,
            "summary": summary_properties(one),
        }
        for one in reversed(later)
    ]


def ever_committed(metadata: TableMetadata, target: Target) -> bool:
    """Whether the table's history has a snapshot of the target: then its files belong to the table."""
    return any(is_publication_of(snapshot, target) for snapshot in metadata.snapshots)


def rolled_back_snapshots(metadata: TableMetadata, target: Target) -> list[int]:
    """Snapshots of the target that no ref leads to, and that nothing was built upon."""
    kept = {parent.snapshot_id for ref in metadata.refs.values() for parent in _ancestors(ref.snapshot_id, metadata)}
    parents = {snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if is_publication_of(snapshot, target) and snapshot.snapshot_id not in kept | parents
    ]


def _ancestors(snapshot_id: int, metadata: TableMetadata) -> Iterator[Snapshot]:
    return iter(ancestors_of(metadata.snapshot_by_id(snapshot_id), metadata))


def expired_tags(metadata: TableMetadata, now: dt.datetime) -> list[str]:
    """Our tags that are past their age: Iceberg's own clean-up of refs is not run by everybody."""
    limit = (now - TAG_MAX_AGE).timestamp() * 1000
    return [
        name
        for name, ref in metadata.refs.items()
        if name.startswith(TAG_PREFIX)
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and (made := metadata.snapshot_by_id(ref.snapshot_id)) is not None
        and made.timestamp_ms < limit
    ]
