"""The preview of a decision says of an effect that stays or is missing what the saga says of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from saga_workers.decision_preview import consequences
from saga_workers.serve.console.progress import progress_of
from sagas.presentation.unproven_effects import unproven_lines
from sagas.presentation.web_ui_text import effect_state
from sagas.protocol.messages import DecisionMade
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

PIVOT = step("place", kind="pivot")


def forward(**more: Any) -> Any:
    return replace(step("charge", on=None, on_failure="park", settle=0.0), **more)


CELLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a call without an answer": (
        saga(PIVOT, forward(kind="retriable")),
        {"charge": ["unknown", "rejected"]},
        "may be missing",
    ),
    "a rejected call": (saga(PIVOT, forward(kind="retriable")), {"charge": "rejected"}, "is missing"),
    "an undo": (
        saga(forward(compensate=undo("credit")), step("later")),
        {"later": "rejected", "charge~undo": "rejected"},
        "stays",
    ),
    "an undo without an answer": (
        saga(forward(compensate=undo("credit")), step("later")),
        {"later": "rejected", "charge~undo": "unknown"},
        "stays",
    ),
    "a confirm": (saga(forward(confirm=op("settle"))), {"charge~confirm": "rejected"}, "is missing"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_the_preview_of_a_skip_says_what_the_saga_says_afterwards(cell: str) -> None:
    definition, answers, words = CELLS[cell]
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.state == "PARKED"
    skip = DecisionMade("charge", "skip", "because", "ada", driver.now)
    assert driver.machine.check_decision(skip) is None
    said = [line for line in consequences(driver.machine, skip) if "the effect of charge" in line]
    after = MachineDriver(definition, answers=answers).run().decide("charge", "skip").run()
    assert after.state == "RESIDUE"
    view = after.machine.view()
    assert [effect_state(view, row) for row in view.residue] == [words]
    assert len(said) == 1
    assert f", {words}: the saga will end RESIDUE" in said[0]
    assert said[0].startswith("not undone: ") == (words == "stays")
    assert ("if you do not find it" in said[0]) == (words == "may be missing")


VOUCHER: dict[str, Any] = {"uses": "http", "with_": {"connection": "old", "method": "POST", "path": "/vouchers"}}
UNPROVEN = (
    "took effect is unknown, and by this decision it counts as not happened: if it has happened, its effect stays"
)
LEFT = "in old, key s1/issue, and nothing undoes it; by hand: undo what http "
NOTHING_STAYS = "nothing that it has done stays"


def unknown_pivot(**more: Any) -> MachineDriver:
    """A saga that is parked, because nobody knows whether its pivot took effect."""
    issue = step("issue", kind="pivot", on=None, idempotent=False, **VOUCHER, **more)
    answers = {"issue": "unknown", "ask": "unsure"}
    driver = MachineDriver(saga(step("book"), issue, step("later", kind="retriable")), answers=answers).run()
    assert driver.state == "PARKED"
    return driver


@pytest.mark.parametrize("more", [{}, {"probe": probe()}], ids=["no probe", "probe"])
def test_a_denied_pivot_is_told_with_what_stays_if_it_has_happened(more: dict[str, Any]) -> None:
    driver = unknown_pivot(**more)
    denied = driver.decision("issue", "compensate", evidence="not in their list")
    first, *others = consequences(driver.machine, denied)
    assert (UNPROVEN in first, LEFT in first) == (True, True)
    assert others[-1] == "book will be undone: un.book"
    assert not any(NOTHING_STAYS in line or "later" in line for line in others)
    ended = unknown_pivot(**more).decide("issue", "compensate", evidence="not in their list").run()
    assert ended.state == "COMPENSATED"
    (line,) = unproven_lines(ended.view)
    assert ("and it counts as not happened" in line, LEFT in line) == (True, True)


def test_the_wait_for_a_decision_is_not_time_of_the_step() -> None:
    driver = unknown_pivot()
    parked_at = driver.story["parked"][0]["since"]
    driver.wait(300.0).decide("issue", "compensate", evidence="not in their list")
    assert (driver.state, driver.row("issue")["ended_at"]) == ("COMPENSATED", parked_at)


def test_a_later_undo_promises_nothing_about_a_denied_pivot() -> None:
    driver = unknown_pivot()
    driver.answers["un.book"] = ["rejected", "done"]
    driver.decide("issue", "compensate", evidence="not in their list")
    assert driver.state == "PARKED"
    said = consequences(driver.machine, driver.decision("book", "retry"))
    assert (any(NOTHING_STAYS in line for line in said), LEFT in said[0]) == (False, True)


def test_a_cancel_is_only_recorded_while_a_pivot_is_undecided() -> None:
    driver = unknown_pivot()
    assert driver.machine.cancel_response() == "recorded"
    note = progress_of(driver.view).undo_note
    assert "only recorded until it is known whether issue took effect: if it has, nothing is undone" in note
    begun = MachineDriver(saga(step("book"), step("later", kind="pivot")), hold=["book"]).start()
    assert begun.machine.cancel_response() == "accepted"
    assert progress_of(begun.view).undo_note == "If it were cancelled now, this would be undone, in this order:"


def test_a_sealed_pivot_leaves_no_doubt() -> None:
    issue = step("issue", kind="pivot")
    driver = MachineDriver(saga(step("book"), issue), answers={"issue": "unknown", "issue~seal": "unknown"}).run()
    said = consequences(driver.machine, driver.decision("issue", "compensate"))
    assert said == [
        "issue is sealed in its database: if it has not happened already, it never will; if it has, "
        "the saga goes forward",
        "book will be undone: un.book",
        "if the undos succeed, nothing that it has done stays",
    ]


def test_what_a_person_takes_as_done_is_told_as_their_word() -> None:
    driver = unknown_pivot()
    said = consequences(driver.machine, driver.decision("issue", "done", evidence="in their list"))
    assert said[0] == "by this decision issue counts as done: if it has not happened, nothing calls it any more"
    undone = step("charge", on=None, compensate=undo("credit", on=None))
    answers = {"later": "rejected", "credit": "rejected"}
    driver = MachineDriver(saga(step("book"), undone, step("later", kind="pivot")), answers=answers).run()
    said = consequences(driver.machine, driver.decision("charge", "done", evidence="seen"))
    assert said[-1] == (
        "if the undos succeed and charge is undone, as this decision says, nothing that it has done stays"
    )
