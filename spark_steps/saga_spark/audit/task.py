"""The runner's task `audit`: every check of a step over what it has staged, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saga_spark.audit import report
from saga_spark.audit.counting import KINDS
from saga_spark.audit.numbers import judge
from saga_spark.audit.result import CheckResult, verdict
from saga_spark.job import Check, Job
from saga_spark.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from saga_spark.runner.run import Run


def audit(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """See the module. ``sink_problems`` are sentences of the sinks: reasons why publishing would be refused."""
    job = Job.parse(request["arguments"])
    manifests = {name: Manifest.from_json(one) for name, one in request["manifests"].items()}
    rows = _Rows(run, manifests, request["inputs"])
    results = [_sink(sentence, number) for number, sentence in enumerate(request.get("sink_problems", ()), 1)]
    for number, check in enumerate(job.audit, 1):
        run.check()
        run.progress({"doing": f"check {number} of {len(job.audit)}: {check.name}"})
        results.append(_evaluate(check, manifests[check.output], request["previous_rows"].get(check.output), rows))
    document: dict[str, Any] = {
        "verdict": verdict(results),
        "saga": request["saga"],
        "checks": [one.to_json() for one in results],
        "outputs": {
            name: {"rows": one.rows, "bytes": one.bytes, "hash": one.hash, "files": len(one.files)}
            for name, one in manifests.items()
        },
    }
    written = report.write(request["report_folder"], document) if job.audit or results else None
    return {"verdict": document["verdict"], "checks": document["checks"], "report": written}


def _evaluate(check: Check, manifest: Manifest, previous: int | None, rows: _Rows) -> CheckResult:
    """Numbers come from the manifest; Spark is asked only where they cannot tell, or to show what broke a check."""
    if check.kind not in KINDS:
        from saga_spark.audit.passes import run_pass

        return run_pass(check, rows.outputs(), rows.inputs())
    found = judge(check, manifest, previous)
    if not found.broken:
        return found
    from saga_spark.audit.passes import samples

    return CheckResult(check, True, found.message, found.details, samples(check, rows.outputs()[check.output]))


def _sink(sentence: str, number: int) -> CheckResult:
    return CheckResult(Check("sink", None, name=f"sink:{number}"), True, sentence)


class _Rows:
    """The staged outputs and the frozen inputs as frames, read when the first check asks for them."""

    def __init__(self, run: Run, manifests: Mapping[str, Manifest], inputs: Mapping[str, Any]) -> None:
        self._run = run
        self._manifests = manifests
        self._frozen = inputs
        self._outputs: dict[str, DataFrame] = {}
        self._inputs: dict[str, DataFrame] = {}

    def outputs(self) -> dict[str, DataFrame]:
        if not self._outputs:
            self._outputs = {name: _staged(self._run, one) for name, one in self._manifests.items()}
        return self._outputs

    def inputs(self) -> dict[str, DataFrame]:
        if not self._inputs and self._frozen:
            from saga_spark.frames import open_inputs

            self._inputs = dict(open_inputs(self._run.spark, self._frozen))
        return self._inputs


def _staged(run: Run, manifest: Manifest) -> DataFrame:
    """The files of the manifest, never a listing."""
    from saga_spark.frames import open_frozen

    return open_frozen(run.spark, {"files": [file.uri for file in manifest.files], "schema": manifest.schema})
