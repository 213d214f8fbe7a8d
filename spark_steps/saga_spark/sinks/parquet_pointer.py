"""The pointer of a Parquet folder: which files are visible, and how that changes. Pure, apart from ``read_pointer``.

``_current.json`` is one version of the pointer. Its number only grows, also when something is taken back. A version
that an overwrite replaces stays as ``_versions/<number>.json``: it is the way back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from saga_spark.sinks.files import local_path
from saga_spark.sinks.sink import NotOurs
from sagas.errors import UsageError

CURRENT = "_current.json"
VERSIONS = "_versions"
DATA = "_data"
LOCK = "_lock"
"""Names in the folder. Spark and pyarrow skip names that begin with an underscore, so whoever reads the folder without
its pointer finds nothing, rather than everything that was ever placed there."""

FORMAT = "saga-parquet"


@dataclass(frozen=True, slots=True)
class DataFile:
    """``path`` is relative to the folder of the pointer."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One publication. ``mark`` are the mark's properties; ``replaced`` is the version an overwrite replaced."""

    mark: Mapping[str, str]
    mode: str
    published_at: str
    files: tuple[DataFile, ...]
    replaced: int | None = None

    @property
    def name(self) -> str:
        """Publish key and generation, as in ``Target.name``."""
        return f"{self.mark['saga.key']}-g{self.mark['saga.generation']}"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        return Entry(**{**data, "files": tuple(DataFile(**one) for one in data["files"])})


@dataclass(frozen=True, slots=True)
class Pointer:
    """``retracted`` names publications that were taken back while a later overwrite hid them: taking that overwrite
    back does not bring them back."""

    version: int = 0
    entries: tuple[Entry, ...] = ()
    retracted: tuple[str, ...] = ()

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False)

    @staticmethod
    def parse(text: str, where: str) -> Pointer:
        """Raises UsageError: this is no pointer of ours."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise ValueError
            entries = tuple(Entry.from_json(one) for one in data.pop("entries"))
            return Pointer(data.pop("version"), entries, tuple(data.pop("retracted")))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{where} is not the pointer of a Parquet output") from None


Earlier = Callable[[int], Pointer | None]
"""An earlier version by its number; None: it is no longer kept."""


def with_entry(pointer: Pointer, entry: Entry) -> Pointer:
    """The next version, with one more publication; an overwrite makes it the only one."""
    if entry.mode == "overwrite":
        return replace(pointer, version=pointer.version + 1, entries=(replace(entry, replaced=pointer.version),))
    return replace(pointer, version=pointer.version + 1, entries=(*pointer.entries, entry))


def without_entry(pointer: Pointer, name: str, mode: str, earlier: Earlier) -> Pointer:
    """The next version, in which a publication is not visible and can not become so again.

    Raises NotOurs: it has overwritten what was there, and others came after it.
    """
    entry = pointer.entry(name)
    entries, retracted = pointer.entries, pointer.retracted
    if entry is None:
        later = [one for one in pointer.entries if name in beneath(one, earlier)]
        if later and mode == "overwrite" and name not in retracted:
            raise _others(pointer, name, later)
        if later:
            retracted = (*retracted, name)
    elif entry.replaced is None:
        entries = tuple(one for one in entries if one is not entry)
    else:
        others = [one for one in entries if one is not entry]
        if others:
            raise _others(pointer, name, others)
        before = Pointer() if entry.replaced == 0 else earlier(entry.replaced)
        if before is None:
            report = {"version": pointer.version, "missing_version": entry.replaced}
            raise NotOurs("what the output has replaced is no longer kept, so it cannot be brought back", report)
        entries = tuple(one for one in before.entries if one.name not in retracted)
    reachable = {one for entry in entries for one in beneath(entry, earlier)}
    kept = tuple(one for one in dict.fromkeys(retracted) if one in reachable)
    return Pointer(pointer.version + 1, entries, kept)


def hidden(pointer: Pointer, name: str, earlier: Earlier) -> bool:
    """Is it published, but overwritten by others since?"""
    return name not in pointer.retracted and any(name in beneath(entry, earlier) for entry in pointer.entries)


def without_way_back(pointer: Pointer, name: str) -> Pointer:
    """The next version, in which a publication no longer knows what it has replaced."""
    entries = tuple(replace(one, replaced=None) if one.name == name else one for one in pointer.entries)
    return pointer if entries == pointer.entries else replace(pointer, version=pointer.version + 1, entries=entries)


def beneath(entry: Entry, earlier: Earlier) -> set[str]:
    """The names of all publications that would come back if this one, and those it replaced, were taken back."""
    return {one.name for version in kept_versions([entry], earlier).values() for one in version.entries}


def kept_versions(entries: Iterable[Entry], earlier: Earlier) -> dict[int, Pointer]:
    """All versions that the undo of these publications, and of those they replaced, may need."""
    found: dict[int, Pointer] = {}
    waiting = list(entries)
    while waiting:
        replaced = waiting.pop().replaced
        before = earlier(replaced) if replaced and replaced not in found else None
        if replaced and before is not None:
            found[replaced] = before
            waiting += before.entries
    return found


def read_pointer(uri: str) -> list[str]:
    """The visible files of a Parquet output, as absolute local paths: for ``spark.read.parquet(*paths)``,
    ``pandas.read_parquet(paths)``, ``pyarrow.dataset.dataset(paths)``.

    ``uri`` is the output's folder (a path or ``file:///…``). All files belong to one version; they stay readable when
    a later version replaces it. Raises UsageError: there is no pointer.
    """
    folder = local_path(uri)
    if folder is None:
        raise UsageError(
            f"{uri} is not a local folder; Parquet outputs with a pointer live in local or mounted folders"
        )
    try:
        text = (folder / CURRENT).read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no Parquet output: there is no {CURRENT} in it") from None
    pointer = Pointer.parse(text, str(folder / CURRENT))
    return [str(folder / file.path) for entry in pointer.entries for file in entry.files]


def _others(pointer: Pointer, name: str, others: list[Entry]) -> NotOurs:
    told = [{**one.mark, "mode": one.mode, "published_at": one.published_at} for one in others]
    who = ", ".join(f"{one.mark['saga.id']}/{one.mark['saga.step']}" for one in others)
    return NotOurs(
        f"the output has overwritten what was there, and others have published after it: {who}",
        {"publication": name, "version": pointer.version, "after": told},
    )
