"""The manifest of one staged output: which files it has, and what is in them. Written once, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One immutable Parquet file. ``uri`` is absolute; sizes in bytes."""

    uri: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Column:
    """What the write pass has seen of one column. ``sum`` is exact decimal text, None where a sum has no meaning."""

    name: str
    type: str
    nulls: int
    sum: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """``schema`` is Spark's JSON of the rows' type, ``hash`` the 128-bit multiset hash of the rows (32 hexadecimal
    digits; see hashing.py), ``inputs`` one fingerprint for each input of the job.

    ``counts`` are the results of the audit's counting checks that rode along in the write pass, by their name.
    """

    key: str
    generation: int
    epoch: int
    output: str
    files: tuple[StagedFile, ...]
    rows: int
    schema: Mapping[str, Any]
    hash: str
    columns: tuple[Column, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int | str | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Canonical JSON: what is stored and hashed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def sha(self) -> str:
        """SHA-256 of the manifest, hexadecimal: the ledger and the sinks keep it."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        values = dict(data)
        values["files"] = tuple(StagedFile(**one) for one in data["files"])
        values["columns"] = tuple(Column(**one) for one in data.get("columns", ()))
        return Manifest(**values)
