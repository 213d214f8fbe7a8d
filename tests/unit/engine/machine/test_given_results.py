"""The result that an operator gives with `done`, compared with what the definition reads from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Definition
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

CODE = "${{ steps.a.result.code }}"


def parked(definition: Definition, input: Any = None, **answers: str) -> MachineDriver:
    return MachineDriver(definition, input or {}, answers={"a": "rejected", **answers}).run()


def read_by_b(expression: Any, **more: Any) -> Definition:
    return saga(step("a", on_failure="park"), step("b", with_={"code": expression}, **more))


@pytest.mark.parametrize(
    ("reads", "result", "refusal"),
    [
        (CODE, {"id": 1}, "--result lacks `code`, which step b reads: `steps.a.result.code`"),
        (CODE, None, "--result is null without the field `code`, which step b reads: `steps.a.result.code`"),
        (CODE, "B-9", "--result is a string without the field `code`, which step b reads: `steps.a.result.code`"),
        (CODE, [{"code": 1}], "--result is a list without the field `code`, which"),
        (CODE, {"code": None}, None),
        ("no. ${{ steps.a.result.code }}", {"id": 1}, "--result lacks `code`"),
        ({"in": [CODE]}, {"id": 1}, "--result lacks `code`"),
        ("${{ steps.a.result }}", None, None),
        ('${{ steps.a.result["order-id"] }}', {"order": 1}, "--result lacks `order-id`"),
        ("${{ steps.a.result.code.short }}", {"code": {}}, "--result lacks `code.short`"),
        ("${{ steps.a.result.code.short }}", {"code": 5}, "`code` in --result is a number without the field `short`"),
        ("${{ steps.a.result.code.short }}", {"code": None}, "`code` in --result is null without the field `short`"),
        # what is expected to be missing
        ('${{ default(steps.a.result.code, "x") }}', {"id": 1}, None),
        ('${{ default(steps.a.result.code, "x") }}', None, None),
        ("${{ default(steps.a.result.code, steps.a.result.name) }}", {"code": 1}, None),
        ("${{ default(steps.a.result.code, steps.a.result.name) }}", {"id": 1}, "--result lacks `name`"),
        ('${{ has(steps.a.result.code) ? steps.a.result.code : "x" }}', {"id": 1}, None),
        ('${{ has(steps.a.result.code) ? "x" : steps.a.result.name }}', {"id": 1}, "--result lacks `name`"),
        ('${{ "code" in steps.a.result ? steps.a.result.code : "x" }}', {"id": 1}, None),
        ('${{ steps.a.result != null ? steps.a.result.code : "x" }}', None, None),
        ('${{ steps.a.result != null ? steps.a.result.code : "x" }}', {"id": 1}, "--result lacks `code`"),
        # branches
        ('${{ input.express ? steps.a.result.code : "x" }}', {"id": 1}, None),
        ('${{ input.express ? "x" : steps.a.result.code }}', {"id": 1}, "--result lacks `code`"),
        ('${{ steps.a.result.id == 1 ? "x" : steps.a.result.code }}', {"id": 1}, None),
        ('${{ steps.a.result.id == 1 ? "x" : steps.a.result.code }}', {"id": 2}, "--result lacks `code`"),
        ("${{ steps.a.result.id == 1 || steps.a.result.code }}", {"id": 1}, None),
        # lists
        ("${{ steps.a.result[0].code }}", [{"id": 1}], "--result lacks `[].code`"),
        ("${{ steps.a.result[0].code }}", [{"code": 1}], None),
        ("${{ steps.a.result[0].code }}", {"code": 1}, "--result is an object, not a list, and step b reads"),
        ("${{ steps.a.result[0].code }}", [], "--result is an empty list, and step b reads: `steps.a.result[0].code`"),
        ("${{ steps.a.result.lines.map(l, l.sku) }}", {"lines": [{"sku": 1}, {}]}, "--result lacks `lines[].sku`"),
        ("${{ steps.a.result.lines.map(l, l.sku) }}", {"lines": []}, None),
        ("${{ steps.a.result.lines.map(l, has(l.sku)) }}", {"lines": [{}]}, None),
        ("${{ steps.a.result.lines.filter(l, has(l.sku)).map(l, l.sku) }}", {"lines": [{}]}, None),
        ("${{ steps.a.result[input.name] }}", {"ann": 1}, None),
        ("${{ steps.a.result[input.name] }}", {"bob": 1}, "--result is an object, not a list, and step b reads"),
    ],
)
def test_what_a_step_reads(reads: Any, result: Any, refusal: str | None) -> None:
    driver = parked(read_by_b(reads), {"express": False, "name": "ann"})
    given = driver.refusal("a", "done", result=result)
    assert (given is None) if refusal is None else (given or "").startswith(refusal), given


@pytest.mark.parametrize(
    ("condition", "result", "refused"),
    [
        ("has(steps.a.result.code)", {"id": 1}, False),
        ("steps.a.result.id == 2", {"id": 1}, False),
        ("steps.a.result.id == 1", {"id": 1}, True),
        ("input.express", {"id": 1}, False),
        ("!input.express", {"id": 1}, True),
        ("steps.a.result.kind == 1", {"code": 1}, True),
    ],
)
def test_a_step_that_will_be_skipped_reads_nothing(condition: str, result: Any, refused: bool) -> None:
    driver = parked(read_by_b(CODE, if_=condition), {"express": False})
    assert (driver.refusal("a", "done", result=result) is not None) is refused


@pytest.mark.parametrize(
    ("definition", "reader"),
    [
        (saga(step("a", on_failure="park", compensate=undo(op("un.a", {"code": CODE})))), "the compensation of step a"),
        (saga(step("a", on_failure="park", confirm=op("ok", {"code": CODE}))), "the confirm of step a"),
        (
            saga(step("a", on_failure="park"), step("b", probe=replace(probe(), operation=op("ask", {"code": CODE})))),
            "the probe of step b",
        ),
        (saga(step("a", on_failure="park"), step("b", for_each=CODE)), "the `for_each` of step b"),
        (saga(step("a", on_failure="park"), step("b", if_="steps.a.result.code == 1")), "the `if` of step b"),
        (saga(step("a", on_failure="park"), step("b", fairness_key=CODE)), "step b"),
        (saga(step("a", on_failure="park"), output={"code": CODE}), "`output`"),
    ],
)
def test_everything_that_reads_is_compared(definition: Definition, reader: str) -> None:
    driver = parked(definition)
    refusal = driver.refusal("a", "done", result={"id": 1})
    assert (refusal or "").startswith(f"--result lacks `code`, which {reader} reads: `steps.a.result.code"), refusal
    assert driver.refusal("a", "done", result={"code": [1]}) is None


def test_the_items_of_a_for_each_are_not_compared() -> None:
    definition = saga(
        step("a", on_failure="park", for_each="${{ [1, 2] }}"),
        step("b", with_={"codes": "${{ steps.a.results.map(r, r.code) }}"}),
    )
    driver = MachineDriver(definition, answers={"a#0": "rejected"}).run()
    assert driver.refusal("a#0", "done", result={"id": 1}) is None


@pytest.mark.parametrize(
    ("other", "phase", "read_by"), [("rejected", "backward", ["id"]), ("done", "forward", ["id", "code"])]
)
def test_a_saga_that_goes_back_reads_only_what_undoes_the_step(other: str, phase: str, read_by: list[str]) -> None:
    definition = saga(
        step("x"),
        step("a", compensate=undo(op("un.a", {"id": "${{ steps.a.result.id }}"}))),
        step("b", needs=("a",), with_={"code": CODE}),
        line=False,
    )
    driver = MachineDriver(definition, answers={"x": other}, hold=["a"]).start().wait(3600)
    assert driver.view.phase == phase
    given: dict[str, Any] = {}
    for name in read_by:
        assert f"--result lacks `{name}`" in (driver.refusal("a", "done", result=given) or "")
        given[name] = 1
    assert driver.refusal("a", "done", result=given) is None


def test_an_undo_has_no_result() -> None:
    definition = saga(step("a"), step("b"), step("c"))
    driver = MachineDriver(definition, answers={"c": "rejected", "b~undo": "rejected"}).run()
    assert driver.refusal("b", "done", evidence="seen") is None
    refused = driver.refusal("b", "done", evidence="seen", result={"x": 1})
    assert refused == "--result has no effect: the undo of b has no result"


def test_a_confirm_has_no_result() -> None:
    driver = MachineDriver(saga(step("a", confirm=op("ok", on="shop"))), answers={"a~confirm": "rejected"}).run()
    assert driver.refusal("a", "done", result=1) == "--result has no effect: the confirm of a has no result"
    assert driver.refusal("a", "done") is None
