"""A Spark step as described by explain and graph, without the operations that the engine adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_cli import main

SAGA = """
saga: day
steps:
  - id: facts
    uses: spark
    with: {sql: "select 1 as a", output: {parquet: data/facts}}
  - id: charge
    uses: sql
    with: {connection: shop, run: "update stock set n = 1"}
    pivot: true
  - id: late
    uses: spark
    on_failure: park
    with: {sql: "select 1 as a", output: {parquet: data/late}}
"""


@pytest.fixture(autouse=True)
def _in_a_project_with_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "day.saga.yaml").write_text(SAGA)
    (tmp_path / "saga.toml").write_text('[connections.shop]\n[spark]\nledger = "shop"\n')
    monkeypatch.chdir(tmp_path)


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return " ".join(printed.out.split())


def test_the_output_before_and_after_the_commit_point(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "day")
    assert "↩ discarded before publication, reverted after it ✔ published at the commit point" in text
    assert "guarded: Staged unread, audited, and published in one atomic commit after the commit" in text
    assert "✔ published as soon as it is done" in text, "after the pivot there is nothing to wait for"
    assert text.count("one transaction on shop") == 1, "of the sql step only"
    assert "spark." not in text


def test_a_failure_discards_what_is_staged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1. ↩ facts its staged output is discarded" in output(capsys, "explain", "day", "--fail", "charge")


@pytest.mark.parametrize("format", ["mermaid", "svg"])
def test_the_graph_shows_what_an_undo_does(capsys: pytest.CaptureFixture[str], format: str) -> None:
    text = output(capsys, "graph", "day", "--format", format)
    assert text.count("↩ discard, or revert") == 1
    assert "spark." not in text
