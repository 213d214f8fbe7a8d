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

_NOTHING = {"actions": [], "connections": [], "task_queues": [], "sagas": [], "signals": []}
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
    return {(change["step"], change["field"]): change for change in document["changes"]}


def test_the_same_definition_in_another_layout(capsys: pytest.CaptureFixture[str]) -> None:
    document = _diff(
        capsys,
        "# a comment\n" + BASE.replace("id: reserve, uses: shop.reserve", "uses: shop.reserve, id: reserve"),
        code=0,
    )
    assert (document["same"], document["changes"]) == (True, [])
    assert document["old"]["digest"] == document["new"]["digest"]
    assert main.run(["diff", "checkout", "new.saga.yaml"]) == 0
    assert capsys.readouterr().out.startswith("checkout  both versions are the same\n")


def test_descriptive_texts_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    document = _diff(capsys, BASE.replace("Take an order.", "Sell it.").replace("Order it", "Place it"), code=0)
    assert document["same"]
    assert [(change["step"], change["field"], change["new_sagas"]) for change in document["changes"]] == [
        (None, "description", None),
        ("order", "name", None),
    ]


def test_a_compensation_that_is_gone_needs_attention(capsys: pytest.CaptureFixture[str]) -> None:
    document = _diff(capsys, BASE.replace(", compensate: shop.refund", ", effect: none"))
    rows = _rows(document)
    assert rows["charge", "compensate"]["change"] == "removed"
    assert rows["charge", "compensate"]["new_sagas"] == "a failure does not undo it any more"
    assert rows["charge", "compensate"]["attention"]
    assert rows["charge", "kind"]["new"] == "read"
    assert document["running_sagas"]["still_needed"] == {
        "actions": ["shop.refund"],
        "connections": [],
        "task_queues": [],
        "sagas": [],
        "signals": [],
    }
    assert not document["running_sagas"]["may_continue_with_new"]
    assert "the kind of charge must not change" in document["running_sagas"]["why_not"]


def test_a_weaker_guarantee_needs_attention(capsys: pytest.CaptureFixture[str]) -> None:
    strong = BASE + '  - {id: tell, uses: shop.charge, with: {sku: "${{ input.sku }}"}}\n'
    Path("definitions/checkout.saga.yaml").write_text(strong)
    document = _diff(capsys, BASE + _MAIL)
    guarantee = _rows(document)["tell", "guarantee"]
    assert (guarantee["old"], guarantee["attention"]) == ("guarded", True)
    Path("definitions/checkout.saga.yaml").write_text(BASE + _MAIL)
    assert not _rows(_diff(capsys, strong))["tell", "guarantee"]["attention"]


def test_steps_that_are_added_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    document = _diff(capsys, BASE + _MAIL)
    assert _rows(document) == {
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
    document = _diff(capsys, BASE)
    assert _rows(document)["tell", "step"]["attention"]
    assert document["running_sagas"]["still_needed"]["actions"] == ["mail.send"]


@pytest.mark.parametrize(
    ("old", "new", "field", "meaning", "attention"),
    [
        ('"checkout-${{ input.basket }}"', '"c-${{ input.basket }}"', "id", "runs a second saga", True),
        ("[basket, sku]", "[basket]", "input.sku", "an input without sku is accepted", False),
        ("sku: {type: string}}", "sku: {type: string, maxLength: 9}}", "input.sku", "a different schema", True),
        (
            "sku: {type: string}}",
            "sku: {type: string}, note: {type: string}}",
            "input.note",
            "is refused if it does not fit",
            True,
        ),
        (
            "required: [basket, sku]\n  properties: {",
            "required: [basket, sku, gift]\n  properties: {gift: {type: boolean}, ",
            "input.gift",
            "an input without gift is refused",
            True,
        ),
        ("type: object\n", "type: object\n  additionalProperties: false\n", "input", "a different schema", True),
        ("deadline: 10m", "deadline: 3m", "deadline", "they go back 3m after their start", False),
        ("deadline: 10m\n", "", "deadline", "no deadline leads them back", False),
        ("pivot: true}", "compensate: shop.refund}", "commit_point", "there is no pivot", True),
        ("steps:", "output: {sku: '${{ input.sku }}'}\nsteps:", "output", "callers get a different output", True),
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
    document = _diff(
        capsys,
        BASE.replace("timeout: 10s", "timeout: 20s").replace('charge, with: {sku: "$', 'charge, with: {sku: "a$'),
    )
    fields = {(change["step"], change["field"]) for change in document["changes"]}
    assert {("charge", "with"), ("charge", "timeout"), ("charge", "compensate.timeout")} <= fields
    assert document["running_sagas"] == {
        "still_needed": _NOTHING,
        "may_continue_with_new": True,
        "why_not": None,
    }
    assert main.run(["diff", "checkout", "new.saga.yaml"]) == 8
    assert "a parked one can continue with the new version" in capsys.readouterr().out


_CHARGE = '{id: charge, uses: shop.charge, with: {sku: "${{ input.sku }}"}, compensate: shop.refund}'


def _charge(text: str) -> str:
    """The definition with another step in place of `charge`."""
    assert _CHARGE in BASE
    return BASE.replace(_CHARGE, text)


def _output(text: str) -> str:
    return BASE.replace("steps:", f"output: {text}\nsteps:")


def _sku(schema: str) -> str:
    return BASE.replace("sku: {type: string}", f"sku: {schema}")


_ALTERNATES = _charge(
    "{id: charge, uses: shop.charge, with: {sku: a},"
    " compensate: [shop.refund, {uses: shop.release, with: {sku: b}, timeout: 3s}]}"
)


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        (_ALTERNATES, _ALTERNATES.replace("sku: b", "sku: c"), ("charge", "compensate.1.with")),
        (_ALTERNATES, _ALTERNATES.replace("3s", "4s"), ("charge", "compensate.1.timeout")),
        (
            BASE,
            BASE.replace("shop.refund}", "{uses: shop.refund, with: {sku: x}}}"),
            ("charge", "compensate.with"),
        ),
        (BASE, _charge(_CHARGE.replace("id: charge,", "id: charge, for_each: [],")), ("charge", "for_each")),
        (_output("{a: 1}"), _output("{a: true}"), (None, "output")),
        (_output("{a_: 1}"), _output("{a: 1}"), (None, "output")),
        (_output("{}"), BASE, (None, "output")),
        (_sku("{const: 1}"), _sku("{const: true}"), (None, "input.sku")),
    ],
)
def test_no_difference_is_missed(capsys: pytest.CaptureFixture[str], old: str, new: str, row: Any) -> None:
    Path("definitions/checkout.saga.yaml").write_text(old)
    document = _diff(capsys, new)
    assert row in _rows(document)
    assert document["old"]["digest"] != document["new"]["digest"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sku: {type: string}", "sku: {type: string, description: what is sold}"),
        ("type: object\n", "type: object\n  title: an order\n"),
        ("${{ input.sku }}", "${{input.sku}}"),
        ("[basket, sku]", "[sku, basket]"),
    ],
)
def test_what_the_digest_leaves_out_is_no_difference(capsys: pytest.CaptureFixture[str], old: str, new: str) -> None:
    document = _diff(capsys, BASE.replace(old, new), code=0)
    assert document["same"]
    assert document["running_sagas"]["may_continue_with_new"]


def test_an_undo_that_loses_its_guard_needs_attention(capsys: pytest.CaptureFixture[str]) -> None:
    row = _rows(_diff(capsys, BASE.replace("shop.refund", "mail.send")))["charge", "compensate.connection"]
    assert (row["new_sagas"], row["attention"]) == ("no guard row protects its effect any more", True)
    Path("definitions/checkout.saga.yaml").write_text(_ALTERNATES)
    row = _rows(_diff(capsys, _charge("{id: charge, uses: shop.charge, with: {sku: a}, compensate: shop.refund}")))
    assert row["charge", "compensate"]["attention"]


@pytest.mark.parametrize(
    ("old", "new", "meaning", "attention"),
    [
        ("{type: string}}\n", "{type: string}, gift: {type: boolean, default: false}}\n", "may have gift", True),
        ("sku: {type: string}}\n", "sku: {type: string, default: x}}\n", "without sku gets a different value", True),
        (", sku: {type: string}}\n", "}\n", "nothing but its presence is checked of sku", False),
    ],
)
def test_what_a_change_of_the_input_means(
    capsys: pytest.CaptureFixture[str], old: str, new: str, meaning: str, attention: bool
) -> None:
    [row] = [
        change for change in _diff(capsys, BASE.replace(old, new))["changes"] if change["field"].startswith("input")
    ]
    assert meaning in row["new_sagas"]
    assert row["attention"] == attention


@pytest.mark.parametrize("schema", ["true", "false"])
def test_an_input_schema_that_is_no_object(capsys: pytest.CaptureFixture[str], schema: str) -> None:
    plain = "saga: checkout\nsteps:\n  - {id: order, uses: shop.order, with: {sku: a}, pivot: true}\n"
    Path("definitions/checkout.saga.yaml").write_text(plain)
    document = _diff(capsys, plain.replace("steps:", f"input: {schema}\nsteps:"))
    assert [change["field"] for change in document["changes"]] == ["input"]


def test_a_nested_saga_and_a_signal_are_still_needed(capsys: pytest.CaptureFixture[str]) -> None:
    pay = BASE.replace("saga: checkout", "saga: pay").replace("pivot: true", "compensate: shop.refund")
    Path("definitions/pay.saga.yaml").write_text(pay)
    nested = "{id: charge, uses: saga, with: {name: pay, input: {basket: b, sku: s}}}"
    waits = "  - {id: told, uses: wait, with: {signal: paid}}\n"
    trigger = 'triggers: {kafka: {topic: paid, id: "${{ trigger.key }}", signal: paid}}\nsteps:'
    old = _charge(nested).replace("pivot: true", "effect: none").replace("steps:", trigger) + waits
    Path("definitions/checkout.saga.yaml").write_text(old)
    document = _diff(capsys, BASE)
    needed = document["running_sagas"]["still_needed"]
    assert (needed["sagas"], needed["signals"]) == (["pay"], ["paid"])
    assert "signals them" in _rows(document)[None, "triggers (signals)"]["new_sagas"]


def test_a_long_value_shows_where_it_differs(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    Path("definitions/checkout.saga.yaml").write_text(BASE.replace("Take an order.", f"{long} one"))
    Path("new.saga.yaml").write_text(BASE.replace("Take an order.", f"{long} two\nforged"))
    assert main.run(["diff", "checkout", "new.saga.yaml"]) in (0, 2)
    Path("new.saga.yaml").write_text(BASE.replace("Take an order.", f"'{long} two'"))
    assert main.run(["diff", "checkout", "new.saga.yaml"]) == 0
    assert "x one → …xxxxxxxxxxxxxx two" in capsys.readouterr().out


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
        (["a" * 300, "checkout"], "there is no saga named aaa"),
        (["definitions", "checkout"], "definitions is a folder"),
        (["-", "-"], "only one of OLD and NEW can be standard input"),
        (["checkout", "bad.saga.yaml"], "bad.saga.yaml:3:13 SAGA104"),
    ],
)
def test_mistakes_are_told_in_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    Path("bad.saga.yaml").write_text("saga: bad\nsteps:\n  - {id: a, usse: shop.order, pivot: true}\n")
    assert main.run(["diff", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
