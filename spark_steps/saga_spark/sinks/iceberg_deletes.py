"""Tables whose rows were deleted by their values: pyiceberg can neither read nor rewrite these."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table.snapshots import Snapshot

ADVICE = "the engine that writes it can rewrite its data files (compaction), then it can be used"


def has_equality_deletes(io: FileIO, snapshot: Snapshot) -> bool:
    """Whether rows of live files may be deleted by an equality delete. One that is older than all live files means
    nothing any more: compaction leaves them behind."""
    manifests = snapshot.manifests(io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    oldest = min((one.min_sequence_number or 0 for one in data), default=0)
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and (manifest.sequence_number or 0) >= oldest
        for entry in manifest.fetch_manifest_entry(io)
    )
