"""validate, explain, simulate, graph, actions and schema, as they are typed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main

RETAIL = Path(__file__).resolve().parents[3] / "definitions" / "retail"


@pytest.fixture(autouse=True)
def _in_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RETAIL)


def output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main.run(words) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(output(capsys, *words, "-o", "json", code=code))


# --- validate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "bad.saga.yaml").write_text("saga: bad\nsteps:\n  - {id: a, uses: require, wiht: {that: 'true'}}\n")
    return tmp_path


def test_validate_reports_mistakes(capsys: pytest.CaptureFixture[str], broken: Path) -> None:
    actual_document = document(capsys, "validate", str(broken), code=1)
    assert {"file", "line", "column", "code", "severity", "message", "help"} == set(actual_document[0])
    assert (actual_document[0]["line"], actual_document[0]["severity"]) == (3, "error")
    text = output(capsys, "validate", str(broken), code=1)
    assert "did you mean `with`?" in text
    assert "1 definition: " in text
    assert output(capsys, "validate", str(broken), "--format", "github", code=1).startswith("::error file=")
    sarif = json.loads(output(capsys, "validate", str(broken), "--format", "sarif", code=1))
    assert sarif["version"] == "2.1.0"
    assert json.loads(output(capsys, "validate", str(broken), "--format", "json", code=1)) == actual_document


def test_validate_a_good_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "validate") == []
    assert output(capsys, "validate") == "✔ 4 definitions, no problems found\n"
    assert output(capsys, "validate", "definitions/weekly-order.saga.yaml").startswith("✔ 1 definition,")


def test_validate_uses_the_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings tell where Spark and Kafka keep rows: without them a start would refuse what `validate` accepts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "tell.saga.yaml").write_text(
        "saga: tell\nsteps:\n"
        "  - {id: a, uses: spark, with: {sql: select 1 as a, output: {parquet: out}}}\n"
        "  - {id: b, uses: kafka.publish, with: {topic: t, value: 1}, pivot: true}\n"
    )
    settings = '[connections.shop]\nurl = "sqlite:///shop.db"\n'
    (tmp_path / "saga.toml").write_text(settings)
    assert {row["code"] for row in document(capsys, "validate", code=1)} == {"SAGA410", "SAGA412"}
    (tmp_path / "saga.toml").write_text(settings + '[kafka]\noutbox = "shop"\n[spark]\nledger = "shop"\n')
    assert document(capsys, "validate") == []


def test_validate_reports_a_schema_file_that_does_not_exist(
    capsys: pytest.CaptureFixture[str], broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(broken)
    settings = '[connections.shop]\nurl = "sqlite:///shop.db"\n  schema = "tables.sql"\n'
    (broken / "saga.toml").write_text(f'definitions = ["."]\n{settings}')
    actual_document = document(capsys, "validate", "--format", "json", code=1)
    place = [(row["file"], row["line"], row["column"], row["code"]) for row in actual_document]
    assert place[0] == ("saga.toml", 4, 3, "SAGA110")
    assert place[1][0] == "bad.saga.yaml"
    assert "`shop` names tables.sql" in actual_document[0]["message"]
    (broken / "tables.sql").touch()
    assert [row["file"] for row in document(capsys, "validate", code=1)] == ["bad.saga.yaml"] * (
        len(actual_document) - 1
    )


@pytest.mark.parametrize(
    ("spark", "message"),
    [
        ('conf = {"spark.sql.session.timeZone" = "CET"}', "spark.conf.spark.sql.session.timeZone must stay UTC"),
        ('remote = "spark:15002"', "spark.remote must be the address of a Spark Connect server"),
    ],
)
def test_validate_refuses_what_a_worker_would(
    spark: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saga.toml").write_text(f"[spark]\n{spark}\n")
    monkeypatch.chdir(tmp_path)
    (actual_document,) = document(capsys, "validate", code=1)
    assert (actual_document["file"], actual_document["code"]) == ("saga.toml", "SAGA142")
    assert message in actual_document["message"]


def test_validate_reports_a_name_that_another_file_of_the_project_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saga.toml").touch()
    (tmp_path / "definitions").mkdir()
    for name in ("definitions/a", "definitions/b", "replacement"):
        (tmp_path / f"{name}.saga.yaml").write_text("saga: ask\nsteps: [{id: w, uses: wait, with: {signal: x}}]\n")
    for name, other in (("a", "b"), ("b", "a")):
        [actual_document] = document(capsys, "validate", f"definitions/{name}.saga.yaml", code=1)
        assert (actual_document["file"], actual_document["code"]) == (f"definitions/{name}.saga.yaml", "SAGA111")
        assert f"definitions/{other}.saga.yaml" in actual_document["message"]
    assert document(capsys, "validate", "replacement.saga.yaml") == []


def test_strict_turns_warnings_into_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "warned.saga.yaml").write_text(
        "saga: warned\nsteps:\n  - {id: pay, uses: bank.pay, task_queue: bank, pivot: true}\n"
    )
    warnings = document(capsys, "validate", str(tmp_path))
    assert warnings
    assert {warning["severity"] for warning in warnings} == {"warning"}
    assert {row["severity"] for row in document(capsys, "validate", str(tmp_path), "--strict", code=1)} == {"error"}


def test_no_definition_gives_a_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.run(["validate", str(tmp_path)]) == 2
    assert f"there is no definition in {tmp_path}" in capsys.readouterr().err


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "explain", "checkout")
    assert plan["order"] == ["reserve", "redeem", "charge", "place", "pack", "announce"]
    assert (plan["commit_point"], plan["commits_at"]) == ("place", "pivot")
    assert {step["id"]: step["kind"] for step in plan["steps"]}["pack"] == "retriable"
    assert {step["guarantee"] for step in plan["steps"]} == {"guarded"}
    assert plan["undo"] == []
    tcc = document(capsys, "explain", "checkout-tcc")
    assert (tcc["commit_point"], tcc["commits_at"]) == (None, "end")
    assert [(step["batchable"], step["why_not_batchable"]) for step in tcc["steps"]] == [(True, None)] * 3
    weekly = {step["id"]: step["why_not_batchable"] for step in document(capsys, "explain", "weekly-order")["steps"]}
    assert weekly["approve"] == "`wait` for a signal needs a workflow of its own"
    assert plan["steps"][0]["why_not_batchable"] == "`notify` needs a workflow of its own"


@pytest.mark.parametrize(
    ("fail", "state", "undo"),
    [
        ("charge", "COMPENSATED", ["redeem#1", "redeem#0", "reserve#1", "reserve#0"]),
        ("reserve#1", "COMPENSATED", ["reserve#0"]),
        ("pack", "PARKED", []),
    ],
)
def test_explain_shows_compensations(
    capsys: pytest.CaptureFixture[str], fail: str, state: str, undo: list[str]
) -> None:
    plan = document(capsys, "explain", "checkout", "--fail", fail)
    assert (plan["state"], plan["undo"]) == (state, undo)


def test_explain_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "checkout")
    assert "↩ undone by inventory.release" in text
    assert "The commit point is place" in text
    assert "not batchable: `notify` needs a workflow of its own" in text
    assert "not batchable: `wait` for a signal needs a workflow of its own" in output(capsys, "explain", "weekly-order")
    assert "1. ↩ charge  payments.refund" in output(capsys, "explain", "checkout", "--fail", "place")


def test_explain_prints_each_text_of_a_definition_on_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n', encoding="utf-8")
    (tmp_path / "named.saga.yaml").write_text(
        r"""
saga: named
description: "one\n::error file=a::two"
steps:
  - {id: approve, name: "x\n::error file=a::y", uses: wait, with: {signal: go}, if: "1 == 1\n || true"}
""",
        encoding="utf-8",
    )
    assert main.run(["explain", "named", "--config", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert r"approve  x\n::error file=a::y" in text
    assert "named  one ::error file=a::two" in text
    assert not [line for line in text.splitlines() if line.startswith("::")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("explain", "chekout"), "did you mean checkout?"),
        (("explain", "checkout", "--fail", "chrge"), "checkout has no step chrge; did you mean charge?"),
        (
            ("explain", "weekly-order", "--fail", "approve"),
            "approve is not reached with the sample input that was generated",
        ),
        (("explain", "checkout", "--input", "{}"), "--input needs --fail STEP"),
        (("simulate", "checkout", "--input", "{}"), "the input of checkout is not valid"),
        (("actions", "inventory.reserv"), "did you mean inventory.reserve?"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str) -> None:
    assert main.run(args) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


# --- simulate --------------------------------------------------------------------------------------------------------


def test_simulate_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    cells = document(capsys, "simulate", "checkout")
    assert {"step", "fault", "state", "undone", "residue"} == set(cells[0])
    by_fault = {(cell["step"], cell["fault"]): cell for cell in cells}
    assert by_fault["charge", "crash after effect"]["state"] == "COMPLETED"
    assert by_fault["place", "rejected"]["undone"][0] == "charge"
    assert not any(cell["residue"] for cell in cells)


def test_simulate_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "simulate", "checkout")
    assert "place ◆" in text
    assert "⏸ undo of charge (compensation fails): retry, done, skip" in text
    assert "of 61 failure points wait for an operator, the others leave no residue" in text
    assert "\x1b" not in text


def test_simulate_says_what_a_finish_skips(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n')
    (tmp_path / "quick.saga.yaml").write_text(
        "saga: quick\ninput: {required: [free], properties: {free: {type: boolean}}}\nsteps:\n"
        "  - {id: gift, uses: finish, with: {when: input.free, output: 1}}\n"
        "  - {id: pay, uses: wait, with: {for: 1s}}\n"
        "  - {id: ask, uses: require, with: {that: 1 == 1}}\n"
    )
    for free, line in (
        (True, "skipped, because the saga finishes at gift (`when: input.free`): pay, ask; an input for which it is"),
        (False, "did not run, or cannot fail: gift"),
    ):
        words = ("--config", str(tmp_path), "simulate", "quick", "--input", json.dumps({"free": free}))
        assert line in " ".join(output(capsys, *words).split())


def test_a_simulated_residue_fails_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text("")
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "leak.saga.yaml").write_text(
        "saga: leak\nsteps:\n"
        "  - {id: hold, uses: old.hold, task_queue: old, idempotent: false, compensate: old.release}\n"
        "  - {id: more, uses: old.hold, task_queue: old, compensate: old.release}\n"
    )
    text = output(capsys, "--config", str(tmp_path), "simulate", "leak", code=1)
    assert "✖ hold, late: COMPENSATED, but the effect stays: hold at old" in text
    assert "✖ 1 left" in text


def test_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "checkout.html"
    output(capsys, "simulate", "checkout", "--html", str(file))
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "undone: charge, redeem#1, redeem#0, reserve#1, reserve#0" in page
    assert "http" not in page.replace("http-equiv", "")


# --- graph, actions, schema ------------------------------------------------------------------------------------------


def test_graph_as_text_and_as_picture(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "graph", "checkout")
    assert text.startswith("flowchart LR\n")
    assert "step_charge --> step_place" in text
    assert "undo_charge -.-> undo_redeem" in text
    picture = xml.fromstring(output(capsys, "graph", "checkout", "--format", "svg"))
    assert picture.tag.endswith("svg")
    drawn = document(capsys, "graph", "weekly-order")
    assert ["approve", "slot"] in drawn["forward"]
    assert drawn["back"] == []


def test_actions(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {row["name"]: row for row in document(capsys, "actions")}
    assert [argument["name"] for argument in listed["inventory.reserve"]["arguments"]] == [
        "basket",
        "sku",
        "quantity",
        "amount",
    ]
    assert listed["inventory.reserve"]["connection"] == "shop"
    assert listed["http"]["built_in"]
    text = output(capsys, "actions", "payments.charge")
    assert "guarded: runs in one transaction on shop" in text


def test_actions_show_arguments_as_definitions_give_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saga.toml").write_text('actions = ["./own.py"]\n')
    (tmp_path / "own.py").write_text(
        "from sagas import Step, action\n\n\n"
        "@action('stock.move')\ndef move(step: Step, from_: str, to: str = 'b', **notes: int) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    actual_document = document(capsys, "actions", "stock.move")
    assert [(argument["name"], argument["required"]) for argument in actual_document["arguments"]] == [
        ("from", True),
        ("to", False),
    ]
    assert actual_document["other_arguments"] == {"type": "integer", "schema": {"type": "integer"}}
    assert "any other" in output(capsys, "actions", "stock.move")


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(output(capsys, "schema"))
    full = json.loads(output(capsys, "schema", "--with-actions"))
    assert (plain["$schema"], full["$schema"]) == (
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    )
    assert "inventory.reserve" in json.dumps(full)
    assert "inventory.reserve" not in json.dumps(plain)


def test_a_new_project_has_the_schema_its_modeline_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output(capsys, "init", str(tmp_path / "shop"))
    definition = tmp_path / "shop" / "definitions" / "shop.saga.yaml"
    named = definition.read_text(encoding="utf-8").split("$schema=", 1)[1].split()[0]
    assert json.loads((definition.parent / named).read_text(encoding="utf-8"))["title"] == "Saga definition"
