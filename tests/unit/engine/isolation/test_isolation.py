"""Effects of a saga that others can see, and whatever covers them: a table of definitions, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from sagas.definition.analysis.isolation import isolation_of
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition, Locks
from sagas.definition.parser.draft import ProjectContext
from sagas.project import Project
from sagas.settings import load_settings

RETAIL = Path(__file__).resolve().parents[4] / "definitions" / "retail"

UNDO = "compensate: {uses: http, with: {url: 'http://a/undo', method: POST}}"
STEPS = f"""
saga: shop
input: {{type: object, properties: {{go: {{type: boolean}}}}}}
steps:
  - {{id: look, uses: http, with: {{url: 'http://a/stock'}}}}
  - {{id: enough, uses: require, with: {{that: "${{{{ steps.look.result.free > 0 }}}}"}}}}
  - {{id: take, uses: http, with: {{url: 'http://a/take', method: POST}}, {UNDO}}}
  - id: hold
    uses: http
    with: {{url: 'http://a/hold', method: POST}}
    {UNDO}
    confirm: {{uses: http, with: {{url: 'http://a/confirm', method: POST}}}}
  - {{id: add, uses: http, commutative: true, with: {{url: 'http://a/add', method: POST}}, {UNDO}}}
  - {{id: order, uses: http, pivot: true, with: {{url: 'http://a/order', method: POST}}}}
  - {{id: ship, uses: http, with: {{url: 'http://a/ship', method: POST, json: "${{{{ steps.look.result }}}}"}}}}
"""


def parse(text: str) -> Definition:
    definition, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext())
    assert definition is not None, diagnostics
    return definition


def risks(definition: Definition) -> dict[str, dict[str, list[str]]]:
    return {
        anomaly.step: {risk.anomaly: list(risk.covered_by) for risk in anomaly.risks}
        for anomaly in isolation_of(definition)
    }


def test_the_anomalies_of_each_kind_of_step() -> None:
    definition = parse(STEPS)
    assert risks(definition) == {
        "look": {"fuzzy read": []},
        "enough": {},
        "take": {"dirty read": [], "lost update": []},
        "hold": {"dirty read": ["tcc"], "lost update": ["tcc"]},
        "add": {"dirty read": [], "lost update": ["commutative"]},
        "order": {},
        "ship": {},
    }
    by_step = {anomaly.step: anomaly for anomaly in isolation_of(definition)}
    assert [step for step in by_step if by_step[step].visible] == ["take", "hold", "add"]
    # `take` follows the condition that uses the read, `ship` uses it itself.
    assert by_step["look"].risks[0].steps == ("take", "ship")


def test_nobody_sees_a_prepared_transaction() -> None:
    folder = RETAIL.parent / "patterns" / "two-phase-commit"
    definition = Project(load_settings(folder)).definition("two-phase-commit")
    prepared = [step.id for step in definition.steps if step.do.two_phase]
    assert prepared
    assert {
        anomaly.step: (anomaly.visible, anomaly.hidden)
        for anomaly in isolation_of(definition)
        if anomaly.step in prepared
    } == dict.fromkeys(prepared, (False, "prepared"))


def test_locks_cover_what_runs_while_they_are_held() -> None:
    definition = parse(STEPS)
    everything = risks(replace(definition, locks=Locks(["sku"], "shop")))
    assert all("lock" in measures for step in everything.values() for measures in step.values())
    later = risks(replace(definition, locks=Locks(["sku"], "shop", from_="hold")))
    assert later["take"]["dirty read"] == []
    assert later["hold"] == {"dirty read": ["lock", "tcc"], "lost update": ["lock", "tcc"]}
    assert later["add"]["lost update"] == ["lock", "commutative"]


def test_nothing_is_visible_that_is_never_undone() -> None:
    forward = "saga: shop\nrecovery: forward\nsteps:\n  - {id: a, uses: http, with: {url: 'http://a', method: POST}}\n"
    assert [anomaly.visible for anomaly in isolation_of(parse(forward))] == [False]


def test_the_declaration_is_not_part_of_a_run() -> None:
    plain, declared = parse(STEPS.replace("commutative: true, ", "")), parse(STEPS)
    assert plain.digest == declared.digest
    assert declared.step("add").commutative
    assert not plain.step("add").commutative


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run(["explain", *words]) == 0
    return capsys.readouterr().out


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RETAIL)
    text = explain(capsys, "checkout", "--isolation")
    assert "visible from its end until place is done, and may be undone until then" in text
    assert "nothing covers 6 of the risks" in text
    assert "every risk is covered" in explain(capsys, "checkout-tcc", "--isolation")
    document: Any = json.loads(explain(capsys, "checkout", "--isolation", "-o", "json"))
    assert document["isolation"]["locks"] is None
    first, *_, last = document["isolation"]["steps"]
    assert first == {
        "id": "reserve",
        "visible": {"from": "reserve", "until": "place"},
        "hidden": None,
        "risks": [
            {"anomaly": "dirty read", "covered_by": [], "steps": []},
            {"anomaly": "lost update", "covered_by": [], "steps": []},
        ],
    }
    assert last == {"id": "announce", "visible": None, "hidden": None, "risks": []}
    assert "isolation" not in json.loads(explain(capsys, "checkout", "-o", "json"))
    assert main.run(["explain", "checkout", "--isolation", "--fail", "charge"]) == 2


@pytest.mark.parametrize(
    "decides",
    [
        "- {id: enough, uses: finish, with: {when: steps.look.result.free == 0}}",
        "- {id: free, uses: pass, with: {result: steps.look.result.free}}\n"
        "  - {id: enough, uses: require, with: {that: steps.free.result > 0}}",
    ],
)
def test_a_read_decides_also_through_a_finish_or_a_pass(decides: str) -> None:
    require = STEPS.splitlines()[5].strip()
    assert "uses: require" in require
    definition = parse(STEPS.replace(require, decides))
    look = next(step for step in isolation_of(definition) if step.step == "look")
    assert [risk.steps for risk in look.risks] == [("take", "ship")]


def test_a_pass_has_no_effect_that_others_see() -> None:
    told = parse(STEPS.replace("steps:\n", f"steps:\n  - {{id: told, uses: pass, {UNDO}}}\n"))
    assert isolation_of(told)[0].to_json(None) == {"id": "told", "visible": None, "hidden": None, "risks": []}
