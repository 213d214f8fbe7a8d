"""The runner task `audit`: evaluates every check of a step over its staged output and writes the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from saga_spark.audit.checks import (
    METRIC_CHECKS,
    CheckResult,
    evaluate_metrics,
    overall_verdict,
    run_data_check,
    violating_rows,
)
from saga_spark.inputs.frozen_inputs import open_frozen_input, open_inputs
from saga_spark.job.job_spec import Check, Job
from saga_spark.manifest import Manifest
from saga_spark.session_conf import apply_conf
from saga_spark.storage import create_folder, write_once
from sagas.builtins.spark import SESSION_ZONE
from sagas.presentation.html_page import html_page
from sagas.text.exact_json import readable_json
from sagas.text.markdown import markdown_code_block, markdown_text
from sagas.text.printable import printable_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from saga_spark.runner.task_context import TaskContext


def audit_outputs(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate all checks. ``sink_problems`` are messages of the sinks: reasons why publishing would be refused."""
    job = Job.parse(request["arguments"])
    manifests = {name: Manifest.from_json(manifest) for name, manifest in request["manifests"].items()}
    if isinstance(job.code, str) or "sql" in job.code:
        apply_conf(context.spark, {name: value for name, value in job.conf.items() if name != SESSION_ZONE})
    rows = _LazyFrames(context, manifests, request["inputs"])
    results = [_sink_problem(message, number) for number, message in enumerate(request.get("sink_problems", ()), 1)]
    for number, check in enumerate(job.audit, 1):
        context.raise_if_cancelled()
        context.progress({"doing": f"check {number} of {len(job.audit)}: {check.name}"})
        results.append(
            _evaluate_check(
                check, manifests[check.output], request["previous_rows"].get(check.output), rows, job.params
            )
        )
    document: dict[str, Any] = {
        "verdict": overall_verdict(results),
        "saga": request["saga"],
        "checks": [result.to_json() for result in results],
        "outputs": {
            name: {"rows": manifest.rows, "bytes": manifest.bytes, "hash": manifest.hash, "files": len(manifest.files)}
            for name, manifest in manifests.items()
        },
    }
    report_uris = write_report(request["report_folder"], document) if job.audit or results else None
    return {"verdict": document["verdict"], "checks": document["checks"], "report": report_uris}


def _evaluate_check(
    check: Check, manifest: Manifest, previous: int | None, rows: _LazyFrames, params: Mapping[str, Any]
) -> CheckResult:
    """Metrics come from the manifest; Spark is used only where they do not suffice, or to show violating rows."""
    if check.kind not in METRIC_CHECKS:
        return run_data_check(check, rows.outputs(), rows.inputs(), params)
    result = evaluate_metrics(check, manifest, previous)
    if not result.violated:
        return result
    return CheckResult(check, True, result.message, result.details, violating_rows(check, rows.outputs()[check.output]))


def _sink_problem(message: str, number: int) -> CheckResult:
    return CheckResult(Check("sink", None, name=f"sink:{number}"), True, message)


class _LazyFrames:
    """The staged outputs and the frozen inputs as DataFrames, opened when a check first needs them."""

    def __init__(self, context: TaskContext, manifests: Mapping[str, Manifest], inputs: Mapping[str, Any]) -> None:
        self._context = context
        self._manifests = manifests
        self._frozen = inputs
        self._outputs: dict[str, DataFrame] = {}
        self._inputs: dict[str, DataFrame] = {}

    def outputs(self) -> dict[str, DataFrame]:
        if not self._outputs:
            self._outputs = {name: _open_staged(self._context, manifest) for name, manifest in self._manifests.items()}
        return self._outputs

    def inputs(self) -> dict[str, DataFrame]:
        if not self._inputs and self._frozen:
            self._inputs = dict(open_inputs(self._context.spark, self._frozen))
        return self._inputs


def _open_staged(context: TaskContext, manifest: Manifest) -> DataFrame:
    """Reads the files of the manifest, never a listing."""
    return open_frozen_input(context.spark, {"files": [file.uri for file in manifest.files], "schema": manifest.schema})


# The report of an audit: JSON for programs, Markdown for chats and tickets, HTML for browsers.
_SYMBOLS = {"pass": "✔", "warn": "⚠", "fail": "✖"}
_VERDICTS = {
    "pass": "All checks passed.",
    "warn": "The output was accepted with warnings.",
    "fail": "The output was rejected, and nothing was published.",
}


def write_report(folder: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Write the report in all formats below ``folder`` (a URI); returns their URIs by format."""
    create_folder(folder)
    forms = {
        "json": ("report.json", printable_json(document, indent=2)),
        "markdown": ("report.md", report_markdown(document)),
        "html": ("report.html", report_html(document)),
    }
    for name, text in forms.values():
        write_once(f"{folder}/{name}", text.encode())
    return {form: f"{folder}/{name}" for form, (name, _) in forms.items()}


def report_markdown(document: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        f"# {markdown_text(_title(document))}",
        "",
        f"{_SYMBOLS[document['verdict']]} {_VERDICTS[document['verdict']]}",
        "",
    ]
    lines += ["| | check | output | found |", "|---|---|---|---|"]
    for check in document["checks"]:
        cells = (markdown_text(str(check[field])) for field in ("name", "output", "message"))
        lines.append(f"| {_SYMBOLS[check['status']]} | {' | '.join(cells)} |")
    for check in document["checks"]:
        if check["samples"]:
            lines += ["", f"## Rows that violate {markdown_text(check['name'])}", ""]
            lines += markdown_code_block([printable_json(row) for row in check["samples"]], "json")
    return "\n".join(lines) + "\n"


def report_html(document: Mapping[str, Any]) -> str:
    """The report as one self-contained HTML page."""
    verdict = document["verdict"]
    rows = "".join(
        f'<tr><td class="{check["status"]}">{_SYMBOLS[check["status"]]}</td>'
        f'<th scope="row">{escape(check["name"])}</th>'
        f"<td>{escape(check['output'])}</td><td>{escape(check['message'])}</td></tr>"
        for check in document["checks"]
    )
    samples = "".join(
        f"<h2>Rows that violate {escape(check['name'])}</h2>{_html_table(check['samples'])}"
        for check in document["checks"]
        if check["samples"]
    )
    outputs = _html_table(
        [
            {"output": name, **{field: output[field] for field in ("rows", "bytes", "hash")}}
            for name, output in document["outputs"].items()
        ]
    )
    body = (
        f'<h1>{escape(_title(document))}</h1>\n<p class="{verdict}">{_SYMBOLS[verdict]} {_VERDICTS[verdict]}</p>\n'
        "<table><thead><tr><td></td><th>check</th><th>output</th><th>found</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>\n{samples}<h2>Outputs</h2>{outputs}"
    )
    return html_page(_title(document), body)


def _title(document: Mapping[str, Any]) -> str:
    saga = document["saga"]
    return f"Audit of {saga['step']} in {saga['id']}"


def _html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td class="value">{escape(_cell_text(row.get(name)))}</td>' for name in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell_text(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else readable_json(value)
