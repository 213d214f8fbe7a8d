"""What a `spark` step tells the saga: small numbers, never rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_spark.manifest import Manifest


def step_result(manifests: Mapping[str, Manifest], report: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the forward step. With one output its facts also stand at the top: ``result.rows``."""
    outputs = {name: _facts(manifest) for name, manifest in manifests.items()}
    result: dict[str, Any] = {"outputs": outputs}
    if len(outputs) == 1:
        result.update(next(iter(outputs.values())))
    warnings = [check["message"] for check in report.get("checks", ()) if check["status"] == "warn"]
    result["audit"] = {"verdict": report.get("verdict", "pass"), "warnings": warnings[:20]}
    if report.get("report"):
        result["audit"]["report"] = report["report"]["html"]
    return result


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "hash": manifest.hash,
        "columns": {
            column.name: {"nulls": column.nulls, **({} if column.sum is None else {"sum": column.sum})}
            for column in manifest.columns[:100]
        },
    }


def refusal(report: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The sentence and the details of a rejection by the audit."""
    failed = [check for check in report["checks"] if check["status"] == "fail"]
    sentence = f"the audit refused the output: {failed[0]['message']}"
    if len(failed) > 1:
        sentence += f" (and {len(failed) - 1} more)"
    details = {
        "checks": [
            {name: check[name] for name in ("name", "kind", "output", "message")} | {"samples": check["samples"][:3]}
            for check in failed[:10]
        ],
        "report": (report.get("report") or {}).get("html"),
    }
    return sentence, details
