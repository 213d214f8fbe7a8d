"""The runner task `audit`: evaluates every check of a step over its staged output and writes the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from saga_spark.audit.checks import METRIC_CHECKS, CheckResult, evaluate_metrics, overall_verdict
from saga_spark.job.job_spec import Check, Job
from saga_spark.manifest import Manifest
from saga_spark.storage import create_folder, write_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from saga_spark.runner.spark_session import TaskContext


def audit_outputs(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate all checks. ``sink_problems`` are messages of the sinks: reasons why publishing would be refused."""
    job = Job.parse(request["arguments"])
    manifests = {name: Manifest.from_json(one) for name, one in request["manifests"].items()}
    rows = _LazyFrames(context, manifests, request["inputs"])
    results = [_sink_problem(sentence, number) for number, sentence in enumerate(request.get("sink_problems", ()), 1)]
    for number, check in enumerate(job.audit, 1):
        context.raise_if_cancelled()
        context.progress({"doing": f"check {number} of {len(job.audit)}: {check.name}"})
        results.append(
            _evaluate_check(check, manifests[check.output], request["previous_rows"].get(check.output), rows)
        )
    document: dict[str, Any] = {
        "verdict": overall_verdict(results),
        "saga": request["saga"],
        "checks": [one.to_json() for one in results],
        "outputs": {
            name: {"rows": one.rows, "bytes": one.bytes, "hash": one.hash, "files": len(one.files)}
            for name, one in manifests.items()
        },
    }
    report_uris = write_report(request["report_folder"], document) if job.audit or results else None
    return {"verdict": document["verdict"], "checks": document["checks"], "report": report_uris}


def _evaluate_check(check: Check, manifest: Manifest, previous: int | None, rows: _LazyFrames) -> CheckResult:
    """Metrics come from the manifest; Spark is used only where they do not suffice, or to show violating rows."""
    if check.kind not in METRIC_CHECKS:
        from saga_spark.audit.checks import run_data_check

        return run_data_check(check, rows.outputs(), rows.inputs())
    found = evaluate_metrics(check, manifest, previous)
    if not found.violated:
        return found
    from saga_spark.audit.checks import violating_rows

    return CheckResult(check, True, found.message, found.details, violating_rows(check, rows.outputs()[check.output]))


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
            self._outputs = {name: _open_staged(self._context, one) for name, one in self._manifests.items()}
        return self._outputs

    def inputs(self) -> dict[str, DataFrame]:
        if not self._inputs and self._frozen:
            from saga_spark.inputs.frozen_inputs import open_inputs

            self._inputs = dict(open_inputs(self._context.spark, self._frozen))
        return self._inputs


def _open_staged(context: TaskContext, manifest: Manifest) -> DataFrame:
    """Reads the files of the manifest, never a listing."""
    from saga_spark.inputs.frozen_inputs import open_frozen_input

    return open_frozen_input(context.spark, {"files": [file.uri for file in manifest.files], "schema": manifest.schema})


# The report of an audit: JSON for programs, Markdown for chats and tickets, HTML for browsers.

_SYMBOLS = {"pass": "✔", "warn": "⚠", "fail": "✖"}
_VERDICTS = {
    "pass": "Everything holds.",
    "warn": "The output was accepted with warnings.",
    "fail": "The output was refused: nothing of it has been published.",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --pass: #1a7f37; --warn: #9a6700; --fail: #cf222e }
@media (prefers-color-scheme: dark) { :root { --pass: #4ac26b; --warn: #d4a72c; --fail: #ff7b72 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line) }
code, td.value { font: 13px/1.5 ui-monospace, monospace }
.pass { color: var(--pass) } .warn { color: var(--warn) } .fail { color: var(--fail) }
"""


def write_report(folder: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Write the report in all formats below ``folder`` (a URI); returns their URIs by format."""
    create_folder(folder)
    forms = {
        "json": ("report.json", json.dumps(document, indent=2, ensure_ascii=False)),
        "markdown": ("report.md", report_markdown(document)),
        "html": ("report.html", report_html(document)),
    }
    for name, text in forms.values():
        write_once(f"{folder}/{name}", text.encode())
    return {form: f"{folder}/{name}" for form, (name, _) in forms.items()}


def report_markdown(document: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [f"# {_title(document)}", "", f"{_SYMBOLS[document['verdict']]} {_VERDICTS[document['verdict']]}", ""]
    lines += ["| | check | output | found |", "|---|---|---|---|"]
    for check in document["checks"]:
        message = str(check["message"]).replace("|", "\\|")
        lines.append(f"| {_SYMBOLS[check['status']]} | {check['name']} | {check['output']} | {message} |")
    for check in document["checks"]:
        if check["samples"]:
            lines += ["", f"## Rows that break {check['name']}", "", "```json"]
            lines += [json.dumps(row, ensure_ascii=False) for row in check["samples"]]
            lines.append("```")
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
        f"<h2>Rows that break {escape(check['name'])}</h2>{_html_table(check['samples'])}"
        for check in document["checks"]
        if check["samples"]
    )
    outputs = _html_table(
        [
            {"output": name, "rows": one["rows"], "bytes": one["bytes"], "hash": one["hash"]}
            for name, one in document["outputs"].items()
        ]
    )
    title = escape(_title(document))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        f'<p class="{verdict}">{_SYMBOLS[verdict]} {_VERDICTS[verdict]}</p>\n'
        "<table><thead><tr><td></td><th>check</th><th>output</th><th>found</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>\n{samples}<h2>Outputs</h2>{outputs}\n</body></html>\n"
    )


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
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
