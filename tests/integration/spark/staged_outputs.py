"""Staged outputs for tests of sinks, written by pyarrow as a Spark job would leave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, StagedFile, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication
from tests.integration.spark.sinks.fork_server import fork_server

TIMEOUT = 60.0


def stage(
    settings: SparkSettings,
    output: Mapping[str, Any],
    rows: pa.Table | Sequence[Mapping[str, Any]],
    *,
    saga: str = "s1",
    generation: int = 1,
    epoch: int = 1,
    files: int = 1,
    name: str = "output",
) -> Publication:
    """Stage ``output`` (as written in YAML), as a `spark` step of the saga ``saga`` does."""
    table = pa.Table.from_pylist([dict(row) for row in rows]) if isinstance(rows, Sequence) else rows
    target = Target(saga, "facts", generation, name)
    folder = Path(settings.stage.removeprefix("file://")) / target.attempt_path(epoch)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(files):
        place = folder / f"part-{number}.parquet"
        part = table.slice(
            number * len(table) // files, (number + 1) * len(table) // files - number * len(table) // files
        )
        pq.write_table(part, place)
        made.append(StagedFile(place.as_uri(), place.stat().st_size, len(part)))
    fields = [
        {"name": field.name, "type": spark_type(field.type), "nullable": True, "metadata": {}} for field in table.schema
    ]
    manifest = Manifest(
        target.publish_key,
        generation,
        epoch,
        name,
        tuple(made),
        len(table),
        {"type": "struct", "fields": fields},
        "0" * 32,
    )
    return Publication(Output.parse(name, output), manifest, CommitTag(target, epoch, manifest.sha, "test"))


def spark_type(type: pa.DataType) -> Any:
    """Spark's JSON of the type that Spark would have written as this."""
    if pa.types.is_decimal(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_timestamp(type):
        return "timestamp_ntz" if type.tz is None else "timestamp"
    if pa.types.is_list(type):
        return {"type": "array", "elementType": spark_type(type.value_type), "containsNull": True}
    if pa.types.is_map(type):
        sides = {"keyType": spark_type(type.key_type), "valueType": spark_type(type.item_type)}
        return {"type": "map", **sides, "valueContainsNull": True}
    if pa.types.is_struct(type):
        fields = [
            {"name": field.name, "type": spark_type(field.type), "nullable": True, "metadata": {}} for field in type
        ]
        return {"type": "struct", "fields": fields}
    return {
        "int8": "byte",
        "int16": "short",
        "int32": "integer",
        "int64": "long",
        "float": "float",
        "double": "double",
        "bool": "boolean",
        "string": "string",
        "date32[day]": "date",
        "binary": "binary",
    }[str(type)]


class Publisher:
    """A process that publishes, or undoes, and signals itself at a given point.

    ``before`` is Python that runs in it first: it may arm a point with ``at(owner, name, when, signal)``, where
    ``when`` is ``before`` or ``after`` the call of ``owner.name``. Its standard output is its outcome.
    """

    def __init__(self, settings: SparkSettings, publication: Publication, state: Any, arm: str, act: str) -> None:
        program = PROGRAM.format(
            root=str(settings.root),
            stage=settings.stage,
            connections=dict(settings.connections),
            catalogs={name: dict(catalog) for name, catalog in settings.catalogs.items()},
            kafka=settings.kafka,
            publication=publication,
            state=state,
            arm=arm,
            act=act,
        )
        self.child = fork_server().run(program)

    def frozen(self) -> None:
        """Wait until it has stopped itself."""
        self.child.wait_until_stopped(TIMEOUT)

    def thaw(self) -> None:
        self.child.resume()

    def outcome(self) -> tuple[int, str]:
        """Exit code (negative: the signal) and output."""
        return self.child.outcome(TIMEOUT)


PROGRAM = """
import functools, os, signal
from pathlib import Path, PosixPath
from sagas.settings import KafkaSettings
from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, ManifestColumn, StagedFile, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import CommitConflict, Publication, UndoConflict, sink_for

def at(owner, name, when, what=signal.SIGKILL, matches=lambda *values: True):
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*values, **named):
        hit = matches(*values)
        if hit and when == "before":
            os.kill(os.getpid(), what)
        result = original(*values, **named)
        if hit and when == "after":
            os.kill(os.getpid(), what)
        return result

    setattr(owner, name, changed)

settings = SparkSettings(
    root=Path({root!r}), stage={stage!r}, connections={connections!r}, catalogs={catalogs!r}, kafka={kafka!r}
)
publication = {publication!r}
sink = sink_for(publication.output.kind, settings)
state = {state!r}
{arm}
try:
    done = {act}
    print("adopted" if done and done[0].adopted else "done")
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
