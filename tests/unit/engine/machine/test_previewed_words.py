"""The preview of a decision says in plain words what is called, what comes after it, and what is not undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from saga_workers.call_words import call_words
from saga_workers.decision_preview import consequences
from sagas.protocol.messages import DecisionMade
from tests.unit.engine.machine.driver import MachineDriver, saga, step, undo

RESERVE = replace(step("reserve", compensate=undo("put_back")), name="Take it")
READ = step("read", kind="read", needs=("reserve",))
CHARGE = replace(step("charge", compensate=undo("refund"), needs=("read",), on_failure="park"), name="Charge the card")
SHIP = step("ship", compensate=undo("return"), needs=("charge",))


def previewed(decision: str, answers: dict[str, Any], **more: Any) -> list[str]:
    driver = MachineDriver(saga(RESERVE, READ, CHARGE, SHIP), answers=answers).run()
    assert driver.state == "PARKED"
    made = DecisionMade("charge", decision, "because", "ada", driver.now, **more)  # pyright: ignore[reportArgumentType]
    assert driver.machine.check_decision(made) is None
    return consequences(driver.machine, made)


REJECTED: dict[str, Any] = {"charge": "rejected"}
UNDO_REJECTED: dict[str, Any] = {"ship": "rejected", "charge~undo": "rejected"}


@pytest.mark.parametrize(
    ("decision", "answers", "begins"),
    [
        (
            "retry",
            REJECTED,
            [
                "Charge the card (charge) is sealed in its database: if it has not happened already, it is called",
                "Charge the card (charge) will be tried again: ",
                "after that, if nothing fails: ship",
            ],
        ),
        (
            "done",
            REJECTED,
            [
                "Charge the card (charge) is recorded as done in its database, unless that has another record of it",
                "ship will be called: ",
            ],
        ),
        (
            "compensate",
            REJECTED,
            [
                "Take it (reserve) will be undone: put_back",
                "these have no undo, and stay as they are: read",
            ],
        ),
        (
            "retry",
            UNDO_REJECTED,
            [
                "Charge the card (charge) will be undone (tried again): refund",
                "after that, also undone, in this order: Take it (reserve)",
                "these have no undo, and stay as they are: read",
            ],
        ),
        (
            "skip",
            UNDO_REJECTED,
            [
                "Take it (reserve) will be undone: put_back",
                "these have no undo, and stay as they are: read",
                "not undone: the effect of charge",
            ],
        ),
    ],
)
def test_a_preview_says_what_follows(decision: str, answers: dict[str, Any], begins: list[str]) -> None:
    more = {"evidence": "seen"} if decision == "done" else {}
    said = previewed(decision, answers, **more)
    assert [words[: len(begin)] for words, begin in zip(said, begins, strict=True)] == begins


def test_calls_are_told_with_the_values_of_the_business() -> None:
    charge = {"connection": "bank", "method": "POST", "path": "/charges", "json": {"to": "Alice", "amount": 30}}
    assert call_words("http", charge) == 'POST /charges of bank, with to: "Alice", amount: 30'
    assert call_words("http", {"url": "https://x", "json": [1]}) == "GET https://x, with json: [1]"
    statement = {"connection": "shop", "run": "update t", "params": {"n": 1}}
    assert call_words("sql", statement) == 'sql of shop, with run: "update t", n: 1'
    assert call_words("pay", {"json": {"a": 1}, "n": None}) == 'pay, with json: {"a": 1}, n: null'
    assert call_words("pay", {}) == "pay"
    assert len(call_words("pay", {"long": "x" * 10_000})) <= 400
