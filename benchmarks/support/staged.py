"""One output from the job to what readers see, as a `spark` step does it, without the saga around it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, sink_for


def settings(root: Path, **more: Any) -> SparkSettings:
    """A project in an empty folder, with an Iceberg catalog in an SQLite file."""
    lake = {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}", "warehouse": (root / "warehouse").as_uri()}
    (root / "warehouse").mkdir(exist_ok=True)
    return SparkSettings(root=root, stage=(root / "stage").as_uri(), catalogs={"lake": lake}, **more)


@dataclass(frozen=True, slots=True)
class StagedStep:
    """One run of a step. ``arguments`` are those of `uses: spark` in their long form, with one output."""

    settings: SparkSettings
    arguments: dict[str, Any]
    target: Target

    @staticmethod
    def new(settings: SparkSettings, job: str, output: dict[str, Any], **more: Any) -> StagedStep:
        return StagedStep(
            settings, {"job": job, "outputs": {"output": output}, **more}, Target(uuid.uuid4().hex, "bench", 1)
        )

    @property
    def freeze(self) -> dict[str, Any]:
        inputs = {name: {"kind": "parquet", "values": values} for name, values in self.arguments["inputs"].items()}
        return {"inputs": inputs, "folder": f"{self.settings.stage}/{self.target.publish_key}/inputs", "known": {}}

    def stage(self, inputs: Any) -> dict[str, Any]:
        target = {"folder": f"{self.settings.stage}/{self.target.attempt_path(1)}", "key": self.target.publish_key}
        targets = {"output": {**target, "generation": 1, "epoch": 1}}
        return {"arguments": self.arguments, "inputs": inputs, "targets": targets}

    def audit(self, inputs: Any, manifests: Any) -> dict[str, Any]:
        report = f"{self.settings.stage}/{self.target.publish_key}/report"
        details = {
            "previous_rows": {"output": None},
            "report_folder": report,
            "saga": {"id": self.target.saga_id, "step": self.target.step},
        }
        return {"arguments": self.arguments, "inputs": inputs, "manifests": manifests, **details}

    def publish(self, audited: dict[str, Any], manifests: Any) -> Manifest:
        """Raises AssertionError: the audit refused, or the sink would."""
        assert audited["verdict"] == "pass", audited
        manifest = Manifest.from_json(manifests["output"])
        output = Output.parse("output", self.arguments["outputs"]["output"])
        publication = Publication(output, manifest, CommitTag(self.target, 1, manifest.sha, "bench"))
        sink = sink_for(output.kind, self.settings)
        assert sink.check(publication) == []
        sink.prepare(publication)
        sink.publish([publication], sink.read_state([publication]), together=False)
        return manifest
