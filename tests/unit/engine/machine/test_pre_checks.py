"""Pre-checks: all of them run, concurrently, before the first effect, and any of them can end the saga there."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.protocol.payloads import encode_call
from sagas.simulation import Script, simulate
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS
from tests.unit.engine.machine.driver import MachineDriver

SHOP = """
saga: shop
input: {type: object, required: [lines], properties: {account: {type: string}, lines: {type: array}}}
deadline: 1h
steps:
  - id: reserve
    for_each: ${{ input.lines }}
    uses: shop.reserve
    with: {sku: "${{ item }}"}
    check: shop.release
    compensate: shop.release
  - id: charge
    needs: []
    uses: bank.charge
    with: {amount: "1"}
    check: {uses: bank.refund, with: {amount: "${{ input.account }}"}, retry: {max_attempts: 2}, timeout: 5s}
    compensate: bank.refund
  - id: book
    uses: shop.book
    check: shop.tell
    pivot: true
  - id: announce
    if: ${{ input.account != 'free' }}
    uses: shop.tell
    check: {uses: require, with: {that: "${{ size(input.lines) < 9 }}"}}
"""
INPUT = {"account": "12", "lines": ["a", "b"]}
READS = """
saga: shop
steps:
  - {id: look, uses: sql, effect: none, with: {connection: shop, run: select 1}}
  - id: book
    uses: sql
    with: {connection: shop, run: insert into t values (1)}
    check: {uses: sql, with: {connection: shop, run: select 2}}
    pivot: true
"""
CHECKS = ["reserve.check#0", "reserve.check#1", "charge.check", "book.check"]


def parse(text: str = SHOP) -> Definition:
    definition, problems = parse_text(text, "shop.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))
    assert definition is not None, problems
    return definition


def test_all_checks_run_at_once_and_no_step_starts_before_the_last_of_them() -> None:
    driver = MachineDriver(parse(), INPUT, hold=CHECKS).start()
    assert sorted(driver.flights) == sorted(CHECKS), "announce.check is a require, which needs no call"
    for check in CHECKS[:-1]:
        driver.end(check)
        assert not [call for call in driver.calls if ".check" not in call.id]
    driver.end(CHECKS[-1]).run()
    assert driver.state == "COMPLETED"


def test_a_check_gets_the_arguments_of_its_step_or_its_own() -> None:
    driver = MachineDriver(parse(), INPUT).run()
    assert driver.call("reserve.check#1").arguments == {"sku": "b"}
    assert driver.call("charge.check").arguments == {"amount": "12"}
    assert (driver.call("charge.check").timeout, driver.call("charge.check").retry.max_attempts) == (5.0, 2)
    assert driver.call("charge.check").key == "s1/charge.check"


@pytest.mark.parametrize("check", [*CHECKS, "charge.check"])
@pytest.mark.parametrize("outcome", ["rejected", "unknown", ("failed", 2)])
def test_a_check_that_does_not_succeed_ends_the_saga_with_nothing_run(check: str, outcome: Any) -> None:
    driver = MachineDriver(parse(), INPUT, answers={check: outcome}).run()
    kind = outcome if isinstance(outcome, str) else outcome[0]
    assert (driver.state, driver.story["reason"]["kind"]) == ("COMPENSATED", kind)
    assert driver.story["reason"]["step"] == check.replace(".check", "")
    assert not [call for call in driver.calls if ".check" not in call.id]
    assert driver.row("charge")["state"] == "PENDING"


def test_a_check_after_the_pivot_rejects_before_anything_has_happened() -> None:
    driver = MachineDriver(parse(), {**INPUT, "lines": list("abcdefghij")}).run()
    assert (driver.state, driver.story["reason"]["step"]) == ("COMPENSATED", "announce")
    assert not [call for call in driver.calls if ".check" not in call.id]


def test_the_check_of_a_skipped_step_is_skipped() -> None:
    driver = MachineDriver(parse(), {"account": "free", "lines": list("abcdefghij")}).run()
    assert driver.states()["announce.check"] == "SKIPPED"
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("cause", ["cancel", "deadline"])
def test_cancel_and_deadline_end_the_saga_while_checks_run(cause: str) -> None:
    driver = MachineDriver(parse(), INPUT, hold=["charge.check"]).start()
    _ = driver.cancel() if cause == "cancel" else driver.fire("deadline")
    assert "charge.check" in driver.cancelled
    driver.end("charge.check", "unknown")
    assert (driver.state, driver.undone) == ("COMPENSATED", [])


def test_a_step_that_is_rejected_despite_its_check_is_rolled_back() -> None:
    driver = MachineDriver(parse(), INPUT, answers={"charge": "rejected"}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["reserve#1", "reserve#0"])


def test_a_saga_without_checks_has_the_same_steps_and_digest_as_ever() -> None:
    text = "saga: shop\nsteps:\n  - {id: a, needs: [], uses: shop.tell, pivot: true}\n"
    definition = parse(text)
    assert [step.id for step in definition.steps] == ["a"]
    assert definition.step("a").needs == ()


def test_simulation_fails_every_check() -> None:
    run = simulate(parse(), INPUT, Script(outcomes={"charge.check": "rejected"}))
    assert run.reason is not None
    assert (run.state, run.undone, run.reason["step"]) == ("COMPENSATED", [], "charge")


def test_the_database_refuses_writes_of_sql_that_only_reads() -> None:
    run = MachineDriver(parse(READS)).start().run()
    reads = {call.id: "reads" in encode_call(call, "s1")["_saga"] for call in run.calls}
    assert reads == {"book.check": True, "look": True, "book": False}
