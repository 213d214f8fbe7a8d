"""The report of an audit: JSON for programs, Markdown for a chat or a ticket, HTML for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from saga_spark.sinks.files import create_folder, write_once

_MARKS = {"pass": "✔", "warn": "⚠", "fail": "✖"}
_WORDS = {
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


def write(folder: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Write the three forms below ``folder`` (a URI); their URIs by form."""
    create_folder(folder)
    forms = {
        "json": ("report.json", json.dumps(document, indent=2, ensure_ascii=False)),
        "markdown": ("report.md", markdown(document)),
        "html": ("report.html", page(document)),
    }
    for name, text in forms.values():
        write_once(f"{folder}/{name}", text.encode())
    return {form: f"{folder}/{name}" for form, (name, _) in forms.items()}


def markdown(document: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [f"# {_title(document)}", "", f"{_MARKS[document['verdict']]} {_WORDS[document['verdict']]}", ""]
    lines += ["| | check | output | found |", "|---|---|---|---|"]
    for check in document["checks"]:
        sentence = str(check["message"]).replace("|", "\\|")
        lines.append(f"| {_MARKS[check['status']]} | {check['name']} | {check['output']} | {sentence} |")
    for check in document["checks"]:
        if check["samples"]:
            lines += ["", f"## Rows that break {check['name']}", "", "```json"]
            lines += [json.dumps(row, ensure_ascii=False) for row in check["samples"]]
            lines.append("```")
    return "\n".join(lines) + "\n"


def page(document: Mapping[str, Any]) -> str:
    """The report as one HTML page that needs nothing but itself."""
    verdict = document["verdict"]
    rows = "".join(
        f'<tr><td class="{check["status"]}">{_MARKS[check["status"]]}</td><th scope="row">{escape(check["name"])}</th>'
        f"<td>{escape(check['output'])}</td><td>{escape(check['message'])}</td></tr>"
        for check in document["checks"]
    )
    samples = "".join(
        f"<h2>Rows that break {escape(check['name'])}</h2>{_table(check['samples'])}"
        for check in document["checks"]
        if check["samples"]
    )
    outputs = _table(
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
        f'<p class="{verdict}">{_MARKS[verdict]} {_WORDS[verdict]}</p>\n'
        "<table><thead><tr><td></td><th>check</th><th>output</th><th>found</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>\n{samples}<h2>Outputs</h2>{outputs}\n</body></html>\n"
    )


def _title(document: Mapping[str, Any]) -> str:
    saga = document["saga"]
    return f"Audit of {saga['step']} in {saga['id']}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td class="value">{escape(_text(row.get(name)))}</td>' for name in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
