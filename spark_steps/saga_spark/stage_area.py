"""The stage area: where attempts write, and what is deleted when."""

from __future__ import annotations

import errno

from saga_spark.keys import Target
from saga_spark.manifest import Manifest
from saga_spark.sinks.files import delete_folder, local_path, resolve


class StageArea:
    """Folders below one URI (``file:///…``, ``s3://…``, ``hdfs://…``)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def folder(self, target: Target, epoch: int) -> str:
        """The URI of one attempt's folder."""
        return f"{self.uri}/{target.folder(epoch)}"

    def inputs(self, target: Target, epoch: int) -> str:
        """Where one attempt freezes the inputs of its job."""
        return f"{self.uri}/{target.key}/g{target.generation}/inputs-e{epoch}"

    def report(self, target: Target, epoch: int) -> str:
        """Where the audit's report of one attempt is."""
        return f"{self.uri}/{target.key}/g{target.generation}/report-e{epoch}"

    def is_whole(self, manifest: Manifest) -> bool:
        """True when every file of the manifest is there with its size."""
        if not manifest.files:
            return True
        system, _ = resolve(self.uri)
        found = system.get_file_info([resolve(file.uri)[1] for file in manifest.files])
        return all(info.size == file.bytes for info, file in zip(found, manifest.files, strict=True))

    def remove(self, uri: str) -> None:
        """Delete one folder of this area; nothing happens when it is not there."""
        if not uri.startswith(f"{self.uri}/"):
            raise ValueError(f"{uri} is not in the stage area {self.uri}")
        delete_folder(uri)

    def remove_generation(self, target: Target) -> None:
        """Delete everything that was ever staged for this target in this generation, and its folder if it is empty."""
        self.remove(f"{self.uri}/{target.key}/g{target.generation}")
        folder = local_path(f"{self.uri}/{target.key}")
        if folder is None:
            return  # elsewhere a folder cannot be deleted only if it is empty: the next generation may begin just now
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
