"""Parquet files with a pointer: readers see exactly the files that ``_current.json`` names.

Data files are immutable, below ``_data/<publish key>-g<generation>-e<epoch>/``. A publication swaps the pointer by one
rename, under a lock and only if its version is the one that was read before the guard decided.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import parquet as pq

from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.column_names import column_name_problems
from saga_spark.sinks.parquet.parquet_pointer import (
    CURRENT,
    DATA,
    Pointer,
    PointerEntry,
    PointerFile,
    PointerFolder,
    add_entry,
    is_overwritten,
    remove_entry,
    remove_undo_link,
)
from saga_spark.sinks.sink import CommitConflict, Publication, Published, refuse_other_manifest
from saga_spark.storage import create_folder, delete_folder, fsync_path, link_or_copy, local_path, resolve_uri
from sagas.errors import InfrastructureError, Rejected, UsageError

MODES = ("append", "overwrite")

MAX_NAME_BYTES = 255
"""The longest name of a folder."""


class ParquetSink:
    """Implements :class:`~saga_spark.sinks.sink.Sink`. Its state is the pointer's version, by folder."""

    def __init__(self, settings: SparkSettings) -> None:
        self._root = settings.root

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        if output.mode not in MODES:
            raise UsageError(
                f"the output {output.name} is Parquet and supports the modes append and overwrite, not {output.mode}",
                help="use an Iceberg or PostgreSQL table for other modes",
            )
        self._output_folder(output)

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Raises UsageError."""
        if len(outputs) > 1:
            raise UsageError(
                f"the output {outputs[0].name} is Parquet, which cannot be published together with others; "
                "remove `publish: together`"
            )

    def check(self, publication: Publication) -> list[str]:
        """Problems with folder, space and schema."""
        folder = self._output_folder(publication.output)
        above = next(existing for existing in (folder, *folder.parents) if existing.exists())
        if not above.is_dir():
            return [f"{above} is a file, not a folder"]
        if not os.access(above, os.W_OK | os.X_OK):
            return [f"the folder {above} is not writable"]
        problems = column_name_problems("parquet", publication.manifest.schema)
        if not (folder / CURRENT).exists() and any(folder.glob("*.parquet")):
            problems.append(f"the folder {folder} has Parquet files without a pointer; choose an empty folder")
        free = shutil.disk_usage(above).free
        if free < publication.manifest.bytes and not _same_device(publication, above):
            problems.append(f"{above} has {free:,} bytes free, but the output needs {publication.manifest.bytes:,}")
        if publication.output.mode == "append":
            problems += _schema_problems(publication, folder, self._pointer_folder(publication.output).read())
        return problems

    def prepare(self, publication: Publication) -> None:
        """Link or copy the files into a separate folder, which appears atomically."""
        pointer = self._pointer_folder(publication.output)
        folder = pointer.folder / DATA / _data_folder_name(publication)
        if not folder.exists():
            with _translate_disk_errors(folder):
                _place_files(publication, folder)
        # The folder appears atomically, so another attempt that overtook this one has placed the same files. It is
        # never replaced: an attempt that resumes late must not touch files that may be visible by now.
        if not _is_complete(publication, pointer.folder):
            raise Rejected(f"the files in {folder} were changed")

    def read_state(self, publications: Sequence[Publication]) -> dict[str, int]:
        folders = {self._output_folder(publication.output) for publication in publications}
        return {str(folder): PointerFolder(folder).read().version for folder in folders}

    def publish(
        self, publications: Sequence[Publication], state: Mapping[str, int], *, together: bool
    ) -> list[Published]:
        """Make the staged files visible by one swap of the pointer for each publication.

        Raises CommitConflict; Rejected if staged files are gone.
        """
        _refuse_together(publications, together)
        done, moved = [], dict(state)
        for publication in publications:
            pointer = self._pointer_folder(publication.output)
            with _translate_disk_errors(pointer.folder), pointer.locked():
                published = self._publish(publication, pointer, moved[str(pointer.folder)])
            if not published.adopted:
                moved[str(pointer.folder)] = published.after
            done.append(published)
        return done

    def revert(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """One swap per publication, even if it is not visible. Raises UndoConflict, CommitConflict."""
        _refuse_together(publications, together)
        done = []
        for publication in reversed(publications):
            pointer = self._pointer_folder(publication.output)
            with _translate_disk_errors(pointer.folder), pointer.locked():
                old = pointer.read()
                name = publication.tag.target.name
                new = remove_entry(
                    old, name, publication.output.mode, pointer.read_version, place=publication.output.destination
                )
                pointer.write(new)
            done.append(Published(old.version, new.version, details={"was_published": old.entry(name) is not None}))
        return done[::-1]

    def close(self, publication: Publication) -> None:
        """Nothing to record: what the pointer names is published."""

    def find(self, output: Output, target: Target) -> Published | None:
        """The publication of this target, also if an overwrite hides it, whose undo makes it visible again."""
        pointer = self._pointer_folder(output)
        current = pointer.read()
        return _existing_publication(current, target, is_overwritten(current, target.name, pointer.read_version))

    def clean_up(self, publication: Publication) -> None:
        """Delete the placed files of all attempts, so that late publishers fail. Raises CommitConflict if visible."""
        pointer = self._pointer_folder(publication.output)
        if not (pointer.folder / DATA).is_dir():
            return
        name = publication.tag.target.name
        with pointer.locked():
            current = pointer.read()
            if current.entry(name) or is_overwritten(current, name, pointer.read_version):
                raise CommitConflict(
                    f"the output is visible in {publication.output.destination}; revert it before its clean-up"
                )
            pointer.delete_data(name)

    def drop_undo_data(self, publication: Publication) -> None:
        """Delete what is kept only for an undo, and for readers of earlier versions.

        Call it for what was published, or published and reverted, once neither can follow any more.
        """
        pointer, name = self._pointer_folder(publication.output), publication.tag.target.name
        with _translate_disk_errors(pointer.folder), pointer.locked():
            old = pointer.read()
            new = remove_undo_link(old, name)
            if new is not old:
                pointer.write(new)
            pointer.delete_unneeded_versions()
            if new.entry(name) is None and not is_overwritten(new, name, pointer.read_version):
                pointer.delete_data(name)

    def _publish(self, publication: Publication, pointer: PointerFolder, expected: int) -> Published:
        tag, current = publication.tag, pointer.read()
        existing = _existing_publication(
            current, tag.target, is_overwritten(current, tag.target.name, pointer.read_version)
        )
        if existing is not None:
            current_entry = current.entry(tag.target.name)
            if current_entry is not None:
                report = {"found_in_sink": dict(current_entry.mark), "expected": tag.properties()}
                refuse_other_manifest(current_entry.mark["saga.manifest"], publication, **report)
            return existing
        if current.version != expected:
            raise CommitConflict(
                f"{pointer.folder} was changed concurrently, from version {expected} to {current.version}"
            )
        if not _is_complete(publication, pointer.folder):
            raise Rejected(f"files of the output {publication.output.name} are missing below {pointer.folder / DATA}")
        problems = _schema_problems(publication, pointer.folder, current) if publication.output.mode == "append" else []
        if problems:
            raise Rejected(f"{pointer.folder} no longer accepts the files: {'; '.join(problems)}", problems=problems)
        entry = PointerEntry(
            tag.properties(),
            publication.output.mode,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            tuple(_planned_files(publication)),
        )
        new = add_entry(current, entry)
        if entry.mode == "overwrite":
            pointer.keep_version(current)
        pointer.write(new)
        return Published(current.version, new.version, details={"rows": publication.manifest.rows})

    def _output_folder(self, output: Output) -> Path:
        folder = local_path(output.destination) if output.destination.startswith("file:") else None
        if folder is None and "://" not in output.destination:
            folder = self._root / output.destination
        if folder is None:
            raise UsageError(
                f"the output {output.name} is Parquet at {output.destination}, and its pointer needs a local or "
                "mounted folder",
                help="write an Iceberg table to an object store: output: {table: catalog.namespace.table}",
            )
        for part in folder.parts:
            if len(part.encode()) > MAX_NAME_BYTES:
                raise UsageError(
                    f"the output {output.name}: the folder name {part} has {len(part.encode())} bytes, and a file "
                    f"system holds {MAX_NAME_BYTES}; shorten it"
                )
        return folder.absolute()

    def _pointer_folder(self, output: Output) -> PointerFolder:
        return PointerFolder(self._output_folder(output))


@contextlib.contextmanager
def _translate_disk_errors(folder: Path) -> Iterator[None]:
    """A full disk or a missing permission is a retryable infrastructure error with one message."""
    try:
        yield
    except OSError as error:
        message = os.strerror(error.errno) if error.errno else str(error)
        raise InfrastructureError(f"{error.filename or folder}: {message}") from error


def _place_files(publication: Publication, folder: Path) -> None:
    create_folder(str(folder.parent))
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        create_folder(str(partial))
        for file, planned in zip(publication.manifest.files, _planned_files(publication), strict=True):
            link_or_copy(file.uri, str(partial / Path(planned.path).name))
        fsync_path(partial)
        try:
            partial.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another attempt was faster
                raise
        fsync_path(folder.parent)
    finally:
        delete_folder(str(partial))


def _data_folder_name(publication: Publication) -> str:
    return f"{publication.tag.target.name}-e{publication.tag.epoch}"


def _planned_files(publication: Publication) -> list[PointerFile]:
    folder = f"{DATA}/{_data_folder_name(publication)}"
    return [
        PointerFile(f"{folder}/{number:05}.parquet", file.bytes, file.rows)
        for number, file in enumerate(publication.manifest.files)
    ]


def _is_complete(publication: Publication, folder: Path) -> bool:
    if not (folder / DATA / _data_folder_name(publication)).is_dir():
        return False
    expected = [(folder / file.path, file.bytes) for file in _planned_files(publication)]
    return all(path.is_file() and path.stat().st_size == bytes for path, bytes in expected)


def _existing_publication(pointer: Pointer, target: Target, overwritten: bool) -> Published | None:
    entry = pointer.entry(target.name)
    if entry is None and not overwritten:
        return None
    return Published(None, pointer.version, adopted=True, details={"hidden": True} if entry is None else {})


def _refuse_together(publications: Sequence[Publication], together: bool) -> None:
    if together and len(publications) > 1:
        raise UsageError("Parquet outputs cannot be published together; remove `publish: together`")


def _same_device(publication: Publication, folder: Path) -> bool:
    files = publication.manifest.files
    source = local_path(files[0].uri) if files else folder
    return source is not None and source.stat().st_dev == folder.stat().st_dev


def _schema_problems(publication: Publication, folder: Path, pointer: Pointer) -> list[str]:
    """The schema of appended files must match that of the visible ones, or readers of all files fail."""
    published_files = [file for entry in pointer.entries for file in entry.files]
    if not published_files or not publication.manifest.files:
        return []
    system, path = resolve_uri(publication.manifest.files[0].uri)
    new, old = pq.read_schema(path, filesystem=system), pq.read_schema(folder / published_files[-1].path)
    problems = [f"the column {name} is missing; published files have it" for name in old.names if name not in new.names]
    problems += [
        f"the column {name} is new; published files do not have it" for name in new.names if name not in old.names
    ]
    for name in new.names:
        if name in old.names and new.field(name).type != old.field(name).type:
            problems.append(
                f"the column {name} is {new.field(name).type}, but {old.field(name).type} in published files"
            )
    return problems
