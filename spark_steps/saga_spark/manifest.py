"""The immutable manifest of a staged output, and the identifiers derived from its step (target, commit tag)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sagas.text.exact_json import canonical_json

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One immutable Parquet file. ``uri`` is absolute; sizes are in bytes."""

    uri: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class ManifestColumn:
    """Metrics of one column from the write pass. ``sum`` is exact decimal text, or None where a sum has no meaning."""

    name: str
    type: str
    nulls: int
    sum: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files and contents of one staged output.

    ``schema`` is the row type as Spark's JSON, ``hash`` the 128-bit multiset hash of the rows (32 hexadecimal digits;
    see row_fingerprint.py), ``inputs`` one fingerprint per input of the job. ``counts`` are the results, by name, of
    the audit's counting checks that were computed in the write pass.
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
        """Canonical JSON: the form that is stored and hashed."""
        return canonical_json(self.to_json())

    @property
    def sha(self) -> str:
        """SHA-256 of the manifest in hexadecimal, as the output record and the sinks store it."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        values = dict(data)
        values["files"] = tuple(StagedFile(**file) for file in data["files"])
        values["columns"] = tuple(ManifestColumn(**column) for column in data.get("columns", ()))
        return Manifest(**values)


# Identifiers derived from a step, so that a retry computes the same ones without stored state.
@dataclass(frozen=True, slots=True)
class Target:
    """One output of one entry of one saga: the unit that is staged, published and reverted as a whole.

    ``step`` is the entry id (``facts``, ``facts#2``), ``output`` the output's name. ``generation`` is incremented when
    the entry runs again after it was undone.
    """

    saga_id: str
    step: str
    generation: int
    output: str = "output"

    @property
    def publish_key(self) -> str:
        """The publish key, the same for every attempt and generation: 32 hexadecimal digits."""
        text = "\0".join((self.saga_id, self.step, self.output))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """Publish key and generation: the identifier that a sink stores."""
        return f"{self.publish_key}-g{self.generation}"

    def attempt_path(self, epoch: int) -> str:
        """The folder of one attempt, relative to the stage area."""
        return f"{self.publish_key}/g{self.generation}/e{epoch}"


@dataclass(frozen=True, slots=True)
class CommitTag:
    """The identification that a sink stores inside its own commit, to recognise the commit later.

    ``epoch`` is the fencing token under which the manifest was staged, ``sha`` the manifest's SHA-256.
    """

    target: Target
    epoch: int
    sha: str
    saga: str = ""

    def properties(self) -> dict[str, str]:
        """The tag as strings, for the properties of a snapshot or the fields of a pointer."""
        return {
            "saga.id": self.target.saga_id,
            "saga.step": self.target.step,
            "saga.output": self.target.output,
            "saga.key": self.target.publish_key,
            "saga.generation": str(self.target.generation),
            "saga.epoch": str(self.epoch),
            "saga.manifest": self.sha,
        }


MAX_SUM_PRECISION = 28
"""Maximum precision of a decimal whose sum cannot overflow Spark's 38 digits."""


def has_exact_sum(data_type: DataType) -> bool:
    """Return whether a column of this type always has a sum: exact and without overflow."""
    from pyspark.sql import types as T

    if isinstance(data_type, T.DecimalType):
        return data_type.precision <= MAX_SUM_PRECISION
    return isinstance(data_type, T.IntegralType)


@dataclass(frozen=True, slots=True)
class ManifestMetric:
    """A metric that is always computed for a column."""

    column: str
    metric: Literal["nulls", "sum"]
