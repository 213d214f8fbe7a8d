"""The manifest of one staged output: which files it has, and what is in them. Written once, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One immutable Parquet file. ``uri`` is absolute; sizes in bytes."""

    uri: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class ManifestColumn:
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
    columns: tuple[ManifestColumn, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int | str | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def canonical_json(self) -> str:
        """Canonical JSON: what is stored and hashed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def sha(self) -> str:
        """SHA-256 of the manifest, hexadecimal: the ledger and the sinks keep it."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        values = dict(data)
        values["files"] = tuple(StagedFile(**one) for one in data["files"])
        values["columns"] = tuple(ManifestColumn(**one) for one in data.get("columns", ()))
        return Manifest(**values)


# Names derived from a step, so that a retry computes them again instead of remembering them.


@dataclass(frozen=True, slots=True)
class Target:
    """One output of one entry of one saga: what is staged, published and taken back as a whole.

    ``step`` is the ledger id (``facts``, ``facts#2``); ``output`` the output's name; ``generation`` grows when the
    entry runs again after it was taken back.
    """

    saga_id: str
    step: str
    generation: int
    output: str = "output"

    @property
    def publish_key(self) -> str:
        """The publish key: the same for every attempt and every generation. 32 hexadecimal digits."""
        text = "\0".join((self.saga_id, self.step, self.output))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """Publish key and generation: what a sink remembers."""
        return f"{self.publish_key}-g{self.generation}"

    def attempt_path(self, epoch: int) -> str:
        """Where one attempt stages, relative to the stage area."""
        return f"{self.publish_key}/g{self.generation}/e{epoch}"


@dataclass(frozen=True, slots=True)
class CommitTag:
    """What a sink stores inside its own commit, so that it can tell later whose commit it was.

    ``epoch`` is the fencing token under which the manifest was staged, ``sha`` the manifest's SHA-256.
    """

    target: Target
    epoch: int
    sha: str
    saga: str = ""

    def properties(self) -> dict[str, str]:
        """As texts: the properties of a snapshot, the fields of a pointer."""
        return {
            "saga.id": self.target.saga_id,
            "saga.step": self.target.step,
            "saga.output": self.target.output,
            "saga.key": self.target.publish_key,
            "saga.generation": str(self.target.generation),
            "saga.epoch": str(self.epoch),
            "saga.manifest": self.sha,
        }


# Which columns of an output have a sum in any case.

MAX_SUM_PRECISION = 28
"""Digits of a decimal whose sum can not overflow Spark's 38."""


def has_exact_sum(data_type: DataType) -> bool:
    """Does a column of this type have a sum in any case, exact and without overflow?"""
    from pyspark.sql import types as T

    if isinstance(data_type, T.DecimalType):
        return data_type.precision <= MAX_SUM_PRECISION
    return isinstance(data_type, T.IntegralType)


@dataclass(frozen=True, slots=True)
class ManifestMetric:
    """A number that is counted of a column in any case."""

    column: str
    metric: Literal["nulls", "sum"]
