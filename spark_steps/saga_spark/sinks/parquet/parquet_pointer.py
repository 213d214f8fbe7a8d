"""The pointer of a Parquet folder, which names the visible files: its versions, and their storage on disk.

``_current.json`` is the current version. Version numbers only increase, also when a publication is reverted. A version
that an overwrite replaces is kept as ``_versions/<number>.json``, for its undo.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from saga_spark.sinks.sink import CommitConflict, UndoConflict, undo_first
from saga_spark.storage import create_folder, delete_folder, local_path, replace_file
from sagas.errors import UsageError
from sagas.text.exact_json import decode_json, readable_json

CURRENT = "_current.json"
VERSIONS = "_versions"
DATA = "_data"
LOCK = "_lock"
"""Names in the folder. Spark and pyarrow skip names with a leading underscore, so a reader that ignores the pointer
finds nothing, rather than every file that was ever placed here."""

FORMAT = "saga-parquet"


@dataclass(frozen=True, slots=True)
class PointerFile:
    """A file to which the pointer refers. ``path`` is relative to the folder of the pointer."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class PointerEntry:
    """One publication. ``mark`` are its commit tag's properties, ``replaced`` the version that it overwrote."""

    mark: Mapping[str, str]
    mode: str
    published_at: str
    files: tuple[PointerFile, ...]
    replaced: int | None = None

    @property
    def name(self) -> str:
        """Publish key and generation, as in ``Target.name``."""
        return f"{self.mark['saga.key']}-g{self.mark['saga.generation']}"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PointerEntry:
        return PointerEntry(**{**data, "files": tuple(PointerFile(**file) for file in data["files"])})


@dataclass(frozen=True, slots=True)
class Pointer:
    """One version of the pointer.

    ``reverted`` names publications that were reverted while a later overwrite hid them: reverting that overwrite does
    not make them visible again.
    """

    version: int = 0
    entries: tuple[PointerEntry, ...] = ()
    reverted: tuple[str, ...] = ()

    def entry(self, name: str) -> PointerEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def text(self) -> str:
        return readable_json({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def parse(text: str, where: str) -> Pointer:
        """Raises UsageError if the text is not a pointer."""
        try:
            data = decode_json(text)
            if data.pop("format") != FORMAT:
                raise ValueError
            entries = tuple(PointerEntry.from_json(item) for item in data.pop("entries"))
            return Pointer(data.pop("version"), entries, tuple(data.pop("reverted")))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{where} is not a pointer of a Parquet output") from None


ReadVersion = Callable[[int], Pointer | None]
"""Returns an earlier version by its number; None if it is no longer kept."""


def add_entry(pointer: Pointer, entry: PointerEntry) -> Pointer:
    """The next version, with one more publication; an overwrite makes it the only one."""
    if entry.mode == "overwrite":
        return replace(pointer, version=pointer.version + 1, entries=(replace(entry, replaced=pointer.version),))
    return replace(pointer, version=pointer.version + 1, entries=(*pointer.entries, entry))


def remove_entry(pointer: Pointer, name: str, mode: str, read_version: ReadVersion, *, place: str) -> Pointer:
    """The next version, in which a publication is not visible and cannot become visible again. ``place``: the folder.

    Raises UndoConflict if the publication has overwritten others and publications came after it.
    """
    entry = pointer.entry(name)
    entries, reverted = pointer.entries, pointer.reverted
    if entry is None:
        later = [other for other in pointer.entries if name in restorable_entries(other, read_version)]
        if later and mode == "overwrite" and name not in reverted:
            raise _overwrite_conflict(pointer, name, later, place)
        if later:
            reverted = (*reverted, name)
    elif entry.replaced is None:
        entries = tuple(other for other in entries if other is not entry)
    else:
        others = [other for other in entries if other is not entry]
        if others:
            raise _overwrite_conflict(pointer, name, others, place)
        before = Pointer() if entry.replaced == 0 else read_version(entry.replaced)
        if before is None:
            raise UndoConflict(
                f"the version of {place} that the output has replaced is no longer kept, so it cannot be restored",
                {"version": pointer.version, "missing_version": entry.replaced},
                by_hand=f"publish the rows that {place} is to have with another saga (mode overwrite)",
            )
        entries = tuple(restored for restored in before.entries if restored.name not in reverted)
    reachable = {restorable for entry in entries for restorable in restorable_entries(entry, read_version)}
    kept = tuple(reverted_name for reverted_name in dict.fromkeys(reverted) if reverted_name in reachable)
    return Pointer(pointer.version + 1, entries, kept)


def is_overwritten(pointer: Pointer, name: str, read_version: ReadVersion) -> bool:
    """Return whether the publication was overwritten by a later one."""
    return name not in pointer.reverted and any(
        name in restorable_entries(entry, read_version) for entry in pointer.entries
    )


def remove_undo_link(pointer: Pointer, name: str) -> Pointer:
    """The next version, in which a publication no longer refers to the version that it replaced."""
    entries = tuple(replace(entry, replaced=None) if entry.name == name else entry for entry in pointer.entries)
    return pointer if entries == pointer.entries else replace(pointer, version=pointer.version + 1, entries=entries)


def restorable_entries(entry: PointerEntry, read_version: ReadVersion) -> set[str]:
    """The names of all publications that would become visible if this one and those that it replaced were reverted."""
    return {
        earlier.name for version in versions_for_undo([entry], read_version).values() for earlier in version.entries
    }


def versions_for_undo(entries: Iterable[PointerEntry], read_version: ReadVersion) -> dict[int, Pointer]:
    """All versions that the undo of these publications, and of those they replaced, may need."""
    versions: dict[int, Pointer] = {}
    waiting = list(entries)
    while waiting:
        replaced = waiting.pop().replaced
        before = read_version(replaced) if replaced and replaced not in versions else None
        if replaced and before is not None:
            versions[replaced] = before
            waiting += before.entries
    return versions


def read_pointer(uri: str) -> list[str]:
    """The visible files of a Parquet output as absolute local paths: for ``spark.read.parquet(*paths)``,
    ``pandas.read_parquet(paths)``, ``pyarrow.dataset.dataset(paths)``.

    ``uri`` is the output's folder (a path or ``file:///…``). All files belong to one version; they stay readable after
    a later version replaces it. Raises UsageError if there is no pointer.
    """
    folder = local_path(uri)
    if folder is None:
        raise UsageError(f"{uri} is not a local folder; Parquet outputs with a pointer are in local or mounted folders")
    try:
        text = (folder / CURRENT).read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} has no Parquet output: {CURRENT} does not exist in it") from None
    pointer = Pointer.parse(text, str(folder / CURRENT))
    return [str(folder / file.path) for entry in pointer.entries for file in entry.files]


def _overwrite_conflict(pointer: Pointer, name: str, others: list[PointerEntry], place: str) -> UndoConflict:
    later = [{**entry.mark, "mode": entry.mode, "published_at": entry.published_at} for entry in others]
    publishers = ", ".join(f"{entry.mark['saga.id']}/{entry.mark['saga.step']}" for entry in others)
    return UndoConflict(
        f"the output in {place} has overwritten others and cannot be reverted, because of later publications: "
        f"{publishers}",
        {"publication": name, "version": pointer.version, "after": later},
        by_hand=undo_first(entry.mark["saga.id"] for entry in others),
        later=[(entry.mark["saga.id"], entry.mark["saga.step"]) for entry in others],
    )


# Storage: the pointer is read without a lock, and swapped under one.
LOCK_TIMEOUT = 20.0
"""Lock timeout in seconds. Others hold the lock for milliseconds, unless they are suspended."""


class PointerFolder:
    """The pointer of one folder. Reading needs no lock, because a version is written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Pointer:
        path = self.folder / CURRENT
        try:
            return Pointer.parse(path.read_text(), str(path))
        except FileNotFoundError:
            return Pointer()

    def read_version(self, version: int) -> Pointer | None:
        path = self._version_file(version)
        try:
            return Pointer.parse(path.read_text(), str(path))
        except FileNotFoundError:
            return None

    def keep_version(self, pointer: Pointer) -> None:
        """Keep a version that is about to be replaced. Requires the lock."""
        if pointer.version:
            create_folder(str(self.folder / VERSIONS))
            replace_file(self._version_file(pointer.version), pointer.text().encode())

    def write(self, pointer: Pointer) -> None:
        """Swap the pointer. Requires the lock."""
        replace_file(self.folder / CURRENT, pointer.text().encode())

    def delete_unneeded_versions(self) -> None:
        """Delete the versions that no undo needs any more, and the data that only they refer to. Requires the lock."""
        current = self.read()
        needed = versions_for_undo(current.entries, self.read_version)
        names = {kept_entry.name for pointer in (current, *needed.values()) for kept_entry in pointer.entries}
        for path in (self.folder / VERSIONS).glob("[0-9]*.json"):
            if int(path.stem) not in needed:
                for entry in Pointer.parse(path.read_text(), str(path)).entries:
                    if entry.name not in names:
                        self.delete_data(entry.name)
                path.unlink()

    def delete_data(self, name: str) -> None:
        """Delete the data of all attempts of one target and generation. Requires the lock."""
        data = self.folder / DATA
        for folder in data.iterdir() if data.is_dir() else ():
            if folder.name.lstrip(".").startswith(f"{name}-e"):
                delete_folder(str(folder))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, which the kernel releases when its holder dies. Raises CommitConflict on timeout."""
        create_folder(str(self.folder))
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            end = time.monotonic() + LOCK_TIMEOUT
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise CommitConflict(f"the lock {self.folder / LOCK} is held by another process") from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def _version_file(self, version: int) -> Path:
        return self.folder / VERSIONS / f"{version}.json"
