"""Markdown that data brings is inert in the details of the Web UI and in reports; so is HTML, also in Mermaid."""

from __future__ import annotations

import re

import pytest

from saga_spark.audit.audit_task import report_html, report_markdown
from sagas.presentation.graph import build_saga_graph, to_mermaid
from sagas.presentation.graph_picture import to_svg
from sagas.presentation.html_page import html_page
from sagas.presentation.web_ui_text import current_details, static_details
from sagas.protocol.saga_view import SagaView
from sagas.text.markdown import markdown_code, markdown_code_block, markdown_text
from tests.unit.engine.machine.driver import saga, step

HOSTILE = (
    "<img src=x onerror=alert(1)> **bold** [click](javascript:alert(1)) ![i](http://evil/p) http://evil www.evil.org"
    " a|b `code` ``` me@evil.org &lt;\n\n# heading\n| new | row |\n```\n<script>alert(1)</script>\u202e\x1b[31m"
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Reserve the goods (2 of 3)", "Reserve the goods (2 of 3)"),
        ("card declined: limit 5.00 €", "card declined: limit 5.00 €"),
        ("<b>", r"\<b\>"),
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("&lt;", "&amp;lt;"),
        ("https://evil", "https&#58;//evil"),
        ("www.evil", r"www\.evil"),
        ("two\nlines", r"two\\nlines"),
        ("1. first", r"1\. first"),
        ("- item", r"\- item"),
    ],
)
def test_what_is_markup_is_escaped(text: str, written: str) -> None:
    assert markdown_text(text) == written


def test_code_that_cannot_be_in_a_span_is_text() -> None:
    assert markdown_code("inventory.reserve") == "`inventory.reserve`"
    assert markdown_code("a`<b>") == r"a\`\<b\>"
    assert markdown_code("a|b") == r"a\|b"


def test_no_line_ends_a_code_block() -> None:
    block = markdown_code_block(["one", "```", "two\n````"])
    assert (block[0], block[-1]) == ("`````", "`````")
    assert block[1:-1] == ["one", "```", r"two\n````"]


def assert_inert(text: str) -> None:
    for unescaped in ("<img", "<script", "](", "![", "http://", "\u202e", "\x1b"):
        assert unescaped not in text.replace("\\" + unescaped[0], "")


def hostile_view() -> SagaView:
    call = {"uses": HOSTILE, "state": "PARKED", "error": {"type": "x", "message": HOSTILE}}
    row = {"id": HOSTILE, "step": "a", "name": HOSTILE, "uses": HOSTILE, "state": "PARKED", "compensation": call}
    parked = {"step": HOSTILE, "op": "do", "since": "", "why": HOSTILE, "decisions": ["retry"], "commands": ["```"]}
    return SagaView.from_json(
        {
            **{"id": HOSTILE, "saga": HOSTILE, "state": "PARKED", "steps": [row, row], "parked": [parked]},
            "reason": {"kind": "rejected", "step": HOSTILE, "message": HOSTILE},
            "residue": [{"step": HOSTILE, "kind": "effect_stays"}],
        }
    )


def test_the_current_details_keep_their_form() -> None:
    details = current_details(hostile_view())
    assert_inert(details)
    rows = [line for line in details.splitlines() if line.startswith("|")]
    assert len(rows) == 4, "the header, its rule, and one row for each step"
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 5 for row in rows)
    assert details.count("````") == 2


def test_the_static_details_keep_their_form() -> None:
    details = static_details(saga(step("a", name=HOSTILE), step("p", kind="pivot"), line=False))
    assert_inert(details)
    assert len([line for line in details.splitlines() if line.startswith("|")]) == 4


def test_mermaid_and_svg_keep_their_form() -> None:
    hostile = HOSTILE + " %%{init: {'securityLevel': 'loose'}}%% \"]; click step_a href \"x\" $$x$$"
    graph = build_saga_graph(saga(step("a", name=hostile), step("p", kind="pivot"), line=False))
    drawn = to_mermaid(graph)
    assert "<img" not in drawn
    assert "%%" not in drawn
    assert "{init" not in drawn
    assert "$$" not in drawn
    [line] = [line for line in drawn.splitlines() if line.startswith("  step_a[")]
    assert line.count('"') == 2
    assert "<img" not in to_svg(graph)
    assert "\x1b" not in to_svg(graph) + drawn


DOCUMENT = {
    "saga": {"id": HOSTILE, "step": HOSTILE},
    "verdict": "fail",
    "checks": [
        {"name": HOSTILE, "output": HOSTILE, "message": HOSTILE, "status": "fail", "samples": [{HOSTILE: HOSTILE}]}
    ],
    "outputs": {HOSTILE: {"rows": 1, "bytes": 2, "hash": HOSTILE}},
}


def test_the_report_of_an_audit_is_inert_in_markdown() -> None:
    report = report_markdown(DOCUMENT)
    outside, fence, block = report.partition("````json")
    assert fence
    assert_inert(outside)
    assert len([line for line in outside.splitlines() if line.startswith("|")]) == 3
    assert len(block.strip().splitlines()) == 2, "one row, and the end of the block"


def test_the_report_of_an_audit_is_inert_in_html() -> None:
    page = report_html(DOCUMENT)
    assert "<img" not in page
    assert "<script" not in page
    assert "\u202e" not in page


def test_a_page_runs_and_loads_nothing() -> None:
    assert "default-src 'none'" in html_page("x", "<p>x</p>")
