"""`saga diff`: two versions of one definition."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main

ACTIONS = """
from sagas import Step, action


@action("shop.reserve", connection="shop")
async def reserve(step: Step, sku: str) -> dict:
    return {}


@action("shop.release", connection="shop")
async def release(step: Step, sku: str) -> None: ...


@action("shop.charge", connection="shop")
async def charge(step: Step, sku: str) -> dict:
    return {}


@action("shop.refund", connection="shop")
async def refund(step: Step, sku: str) -> None: ...


@action("shop.order", connection="shop", rejects=False)
async def order(step: Step, sku: str) -> dict:
    return {}


@action("mail.send", rejects=False)
async def send(step: Step, sku: str) -> None: ...
"""

BASE = """saga: checkout
description: Take an order.
id: "checkout-${{ input.basket }}"
input:
  type: object
  required: [basket, sku]
  properties: {basket: {type: string}, sku: {type: string}}
deadline: 10m
defaults: {timeout: 10s}
steps:
  - {id: reserve, uses: shop.reserve, with: {sku: "${{ input.sku }}"}, compensate: shop.release}
  - {id: charge, uses: shop.charge, with: {sku: "${{ input.sku }}"}, compensate: shop.refund}
  - {id: order, name: Order it, uses: shop.order, with: {sku: "${{ input.sku }}"}, pivot: true}
"""

_MAIL = '  - {id: tell, uses: mail.send, with: {sku: "${{ input.sku }}"}}\n'


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "checkout.saga.yaml").write_text(BASE)
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "saga.toml").write_text('actions = ["./actions.py"]\n[connections.shop]\nurl = "sqlite:///shop.db"\n')


def _diff(capsys: pytest.CaptureFixture[str], changed: str, *, code: int = 8) -> Any:
    Path("new.saga.yaml").write_text(changed)
    assert main.run(["diff", "checkout", "new.saga.yaml", "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)


def _rows(document: Any) -> dict[tuple[str | None, str], Any]:
    return {(one["step"], one["field"]): one for one in document["changes"]}


def test_the_same_definition_in_another_layout(capsys: pytest.CaptureFixture[str]) -> None:
    found = _diff(
        capsys,
        "# a comment\n" + BASE.replace("id: reserve, uses: shop.reserve", "uses: shop.reserve, id: reserve"),
        code=0,
    )
    assert (found["same"], found["changes"]) == (True, [])
    assert found["old"]["digest"] == found["new"]["digest"]
    assert main.run(["diff", "checkout", "new.saga.yaml"]) == 0
    assert capsys.readouterr().out.startswith("checkout  both versions are the same\n")


def test_descriptive_texts_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = _diff(capsys, BASE.replace("Take an order.", "Sell it.").replace("Order it", "Place it"), code=0)
    assert found["same"]
    assert [(one["step"], one["field"], one["new_sagas"]) for one in found["changes"]] == [
        (None, "description", None),
        ("order", "name", None),
    ]


def test_a_compensation_that_is_gone_needs_attention(capsys: pytest.CaptureFixture[str]) -> None:
    found = _diff(capsys, BASE.replace(", compensate: shop.refund", ", effect: none"))
    rows = _rows(found)
    assert rows["charge", "compensate"]["change"] == "removed"
    assert rows["charge", "compensate"]["new_sagas"] == "a failure does not undo it any more"
    assert rows["charge", "compensate"]["attention"]
    assert rows["charge", "kind"]["new"] == "read"
    assert found["running_sagas"]["still_needed"] == {"actions": ["shop.refund"], "connections": [], "task_queues": []}
    assert not found["running_sagas"]["may_continue_with_new"]
    assert "the kind of charge must not change" in found["running_sagas"]["why_not"]


def test_a_weaker_guarantee_needs_attention(capsys: pytest.CaptureFixture[str]) -> None:
    strong = BASE + '  - {id: tell, uses: shop.charge, with: {sku: "${{ input.sku }}"}}\n'
    Path("definitions/checkout.saga.yaml").write_text(strong)
    found = _diff(capsys, BASE + _MAIL)
    guarantee = _rows(found)["tell", "guarantee"]
    assert (guarantee["old"], guarantee["attention"]) == ("guarded", True)
    Path("definitions/checkout.saga.yaml").write_text(BASE + _MAIL)
    assert not _rows(_diff(capsys, strong))["tell", "guarantee"]["attention"]


def test_steps_that_are_added_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    found = _diff(capsys, BASE + _MAIL)
    assert _rows(found) == {
        ("tell", "step"): {
            "step": "tell",
            "field": "step",
            "change": "added",
            "old": None,
            "new": "mail.send",
            "new_sagas": "they run it, after order: retried until it is done",
            "attention": False,
        }
    }
    Path("definitions/checkout.saga.yaml").write_text(BASE + _MAIL)
    found = _diff(capsys, BASE)
    assert _rows(found)["tell", "step"]["attention"]
    assert found["running_sagas"]["still_needed"]["actions"] == ["mail.send"]


@pytest.mark.parametrize(
    ("old", "new", "field", "meaning", "attention"),
    [
        ('"checkout-${{ input.basket }}"', '"c-${{ input.basket }}"', "id", "runs a second saga", True),
        ("[basket, sku]", "[basket]", "input.sku", "an input without sku is accepted", False),
        ("sku: {type: string}}", "sku: {type: string, maxLength: 9}}", "input.sku", "another schema", True),
        ("sku: {type: string}}", "sku: {type: string}, note: {type: string}}", "input.note", "may have note", False),
        (
            "required: [basket, sku]\n  properties: {",
            "required: [basket, sku, gift]\n  properties: {gift: {type: boolean}, ",
            "input.gift",
            "an input without gift is refused",
            True,
        ),
        ("type: object\n", "type: object\n  additionalProperties: false\n", "input", "another schema", True),
        ("deadline: 10m", "deadline: 3m", "deadline", "they go back 3m after their start", False),
        ("deadline: 10m\n", "", "deadline", "never go back by themselves", False),
        ("pivot: true}", "compensate: shop.refund}", "commit_point", "there is no pivot", True),
        ("steps:", "output: {sku: '${{ input.sku }}'}\nsteps:", "output", "callers get another output", True),
        ("steps:", "triggers: {kafka: {topic: orders}}\nsteps:", "triggers", "`saga trigger`", False),
    ],
)
def test_what_a_change_of_the_saga_means(
    capsys: pytest.CaptureFixture[str], old: str, new: str, field: str, meaning: str, attention: bool
) -> None:
    assert old in BASE
    row = _rows(_diff(capsys, BASE.replace(old, new)))[None, field]
    assert meaning in row["new_sagas"]
    assert row["attention"] == attention


def test_only_times_and_arguments_may_change_for_a_parked_saga(capsys: pytest.CaptureFixture[str]) -> None:
    found = _diff(
        capsys,
        BASE.replace("timeout: 10s", "timeout: 20s").replace('charge, with: {sku: "$', 'charge, with: {sku: "a$'),
    )
    fields = {(one["step"], one["field"]) for one in found["changes"]}
    assert {("charge", "with"), ("charge", "timeout"), ("charge", "compensate.timeout")} <= fields
    assert found["running_sagas"] == {
        "still_needed": {"actions": [], "connections": [], "task_queues": []},
        "may_continue_with_new": True,
        "why_not": None,
    }
    assert main.run(["diff", "checkout", "new.saga.yaml"]) == 8
    assert "a parked one can continue with the new version" in capsys.readouterr().out


def test_an_old_version_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(BASE.replace("deadline: 10m", "deadline: 1h")))
    assert main.run(["diff", "-", "checkout"]) == 8
    text = capsys.readouterr().out
    assert "· deadline  1h → 10m" in text
    assert "running sagas go on with the definition with which they started" in text


def test_the_page_quotes_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.saga.yaml").write_text(BASE.replace("Order it", "<script>alert(1)</script>"))
    assert main.run(["diff", "checkout", "new.saga.yaml", "--html", "diff.html"]) == 0
    page = Path("diff.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "written: diff.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["checkout", "missing.saga.yaml"], "there is no file missing.saga.yaml"),
        (["checkout", "chekout"], "did you mean checkout?"),
        (["-", "-"], "only one of OLD and NEW can be standard input"),
        (["checkout", "bad.saga.yaml"], "bad.saga.yaml:3:5 SAGA105"),
    ],
)
def test_mistakes_are_told_in_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    Path("bad.saga.yaml").write_text("saga: bad\nsteps:\n  - {id: a, usse: shop.order}\n")
    assert main.run(["diff", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
