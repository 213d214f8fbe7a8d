"""The report of a reconciliation as one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from saga_cli.output import to_json
from saga_spark.reconcile.findings import MISMATCH_KINDS, count_text
from sagas.presentation.html_page import html_page
from sagas.text.shortening import counted, join_names

SHOWN_ROWS = 200
"""Rows of each class on the page; the JSON report has more."""


def reconciliation_html(report: Mapping[str, Any]) -> str:
    """The whole page: the verdict, what was read, and for each class counts, samples, keys and commands."""
    if not report["consistent"]:
        unread = f"; {escape(missing_keys_text(report))}" if missing_keys_text(report) else ""
        verdict = f'<p class="fail">✖ {count_text(sum(report["counts"].values()))}{unread}.</p>'
    elif any(report["read"].values()):
        verdict = '<p class="pass">✔ Everything reconciles.</p>'
    else:
        verdict = "<p>Nothing to reconcile: no saga, effect or event was found.</p>"
    about = f"saga {report['saga']}" if report["saga"] else "all sagas"
    since = f" since {report['since']}" if report["since"] else ""
    read = "; ".join(f"{number:,} {escape(name)}" for name, number in report["read"].items())
    repaired = "".join(
        f"<li>{escape(repair['saga_id'])}: {escape(repair['done'])}</li>" for repair in report.get("repairs") or ()
    )
    classes = "\n".join(
        _kind_section(kind, number, [finding for finding in report["findings"] if finding["class"] == kind])
        for kind, number in report["counts"].items()
    )
    body = (
        f"<h1>Reconciliation</h1>\n<p>{escape(about + since)}, as of {escape(report['until'])}</p>\n{verdict}\n"
        f"<p>Read in {report['seconds']:g} s: {read}.</p>\n"
        + (f"<h2>Repaired</h2><ul>{repaired}</ul>\n" if repaired else "")
        + classes
        + _decided_section(report["decided"])
    )
    return html_page(f"Reconciliation: {about}", body)


def missing_keys_text(report: Mapping[str, Any]) -> str:
    """A clause about the outcomes that could not be read; empty if there are none."""
    keys = report.get("missing_keys") or {}
    if not keys:
        return ""
    names = join_names(sorted(keys), 5)
    outcomes = counted(sum(keys.values()), "outcome")
    return f"{outcomes} cannot be read: encrypted with {names}, which [codec] key lacks; the ledger counts instead"


def decision_text(row: Mapping[str, Any]) -> str:
    """The state of a publication that counts as undone, and the decision: when, who, why, and with what evidence."""
    evidence = f"; evidence: {row['evidence']}" if row["evidence"] else ""
    return f"{row['state']} {row['at']} {row['who']}: done, because {row['reason'] or '…'}{evidence}"


def _decided_section(decided: Sequence[Mapping[str, Any]]) -> str:
    if not decided:
        return ""
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in (row["saga_id"], row["step"], row["place"],
                                                                decision_text(row))) + "</tr>"
        for row in decided
    )  # fmt: skip
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("saga", "step", "where", "decision"))
    return (
        f"<h2>{counted(len(decided), 'publication')} closed by the decision of an operator</h2>\n"
        f"<p>The engine has not reverted them, and does not compare them.</p>\n"
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    )


def _kind_section(kind: str, count: int, findings: Sequence[Mapping[str, Any]]) -> str:
    rows = "\n".join(_finding_row(finding) for finding in findings[:SHOWN_ROWS])
    more = f"<p>… and {count - SHOWN_ROWS} more.</p>" if count > SHOWN_ROWS else ""
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("saga", "step", "where", "details", "command"))
    return (
        f"<h2>{count} × {escape(MISMATCH_KINDS[kind].title)}</h2>\n<p>{escape(MISMATCH_KINDS[kind].meaning)}</p>\n"
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>{more}"
    )


def _finding_row(finding: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return escape("" if value is None else value if isinstance(value, str) else to_json(value))

    saga = f"{text(finding['saga_id']) or '–'}<small>{text(finding['saga'])} {text(finding['state'])}</small>"
    where = text(finding["place"]) + "".join(
        f"<small>{text(name)} = {text(value)}</small>" for name, value in (finding["row"] or {}).items()
    )
    details = "".join(
        f"<small>{text(name)}: {text(value)}</small>" for name, value in finding["details"].items() if value is not None
    )
    cells = (saga, text(finding["step"]), where, details, f"<code>{text(finding['command'])}</code>")
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
