"""The layout of the stage area."""

from __future__ import annotations

import errno

from saga_spark.manifest import Manifest, Target
from saga_spark.storage import delete_folder, local_path, resolve_uri


class StageArea:
    """Folders below one URI (``file:///…``, ``s3://…``, ``hdfs://…``)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def attempt_folder(self, target: Target, epoch: int) -> str:
        """The URI of one attempt's folder."""
        return f"{self.uri}/{target.attempt_path(epoch)}"

    def inputs_folder(self, target: Target, epoch: int) -> str:
        """The folder in which one attempt freezes the inputs of its job."""
        return f"{self.uri}/{target.publish_key}/g{target.generation}/inputs-e{epoch}"

    def report_folder(self, target: Target, epoch: int) -> str:
        """The folder of the audit report of one attempt."""
        return f"{self.uri}/{target.publish_key}/g{target.generation}/report-e{epoch}"

    def is_complete(self, manifest: Manifest) -> bool:
        """Return whether every file of the manifest exists with its recorded size."""
        if not manifest.files:
            return True
        system, _ = resolve_uri(self.uri)
        infos = system.get_file_info([resolve_uri(file.uri)[1] for file in manifest.files])
        return all(info.size == file.bytes for info, file in zip(infos, manifest.files, strict=True))

    def remove_folder(self, uri: str) -> None:
        """Delete one folder of this area; does nothing if it does not exist."""
        if not uri.startswith(f"{self.uri}/"):
            raise ValueError(f"{uri} is not in the stage area {self.uri}")
        delete_folder(uri)

    def remove_generation(self, target: Target) -> None:
        """Delete everything staged for this target in this generation, and the parent folder if it is empty."""
        self.remove_folder(f"{self.uri}/{target.publish_key}/g{target.generation}")
        folder = local_path(f"{self.uri}/{target.publish_key}")
        if folder is None:
            return  # other file systems cannot delete only-if-empty atomically, and the next generation may be starting
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
