"""Rows of a parked automatic compensation, in the view and in the residue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from saga_workers.decision_preview import consequences
from sagas.builtins.automatic import RESTORE
from sagas.builtins.two_phase import ROLLBACK
from sagas.definition.model import Compensation
from sagas.protocol.messages import CallEnded, DecisionMade
from sagas.protocol.outcomes import Failure, Outcome
from sagas.sql_text.restoring_script import restoring_command, restoring_script
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step


def undone_by(uses: str) -> Any:
    return replace(step("a", do=op("sql", {}, on="shop")), compensate=Compensation((op(uses, {}, on="shop"),)))


ROW = {
    "row": "the row id=1 of t",
    "table": "t",
    "key": {"id": "1"},
    "before": {"n": "5"},
    "after": {"n": "4"},
    "now": None,
    "changed_by": "somebody",
}
SQL = {
    "row": "the row id=1 of t",
    "sql": "INSERT INTO t VALUES (1, 5)",
    "check": "EXISTS (SELECT 1 FROM t WHERE id = 1)",
}
DETAILS = {"rows": [ROW], "changed_rows": 1, "open_rows": 1, "dialect": "postgresql", "sql": [SQL], "sql_refused": None}


def parked(details: dict[str, Any], uses: str = RESTORE, now: dict[str, Any] | None = None) -> MachineDriver:
    """A saga whose undo is parked with these details. ``now`` are those of a skip, None: it cannot read them."""
    skip = "unknown" if now is None else Outcome.done(now, marker="skipped")
    answers = {"b": "rejected", "saga.skip": skip}
    driver = MachineDriver(saga(undone_by(uses), step("b")), answers=answers, hold=["a~undo"]).start()
    driver.flights.pop("a~undo")
    failure = Failure("Parked", "why", details)
    outcome = Outcome("failed", failure=failure, attempt=1, retryable=False, park_reason="why")
    return driver.feed(CallEnded("a~undo", outcome, driver.now, 0))


def test_the_view_has_the_rows_and_the_sql() -> None:
    (shown,) = parked(DETAILS).story["parked"]
    assert (shown["system"], shown["rows"]) == ("shop", [ROW])
    assert shown["sql"] == list(restoring_script("postgresql", [SQL]))
    assert not {"rows_omitted", "sql_note"} & shown.keys()


def test_the_view_says_what_it_leaves_out() -> None:
    (shown,) = parked({**DETAILS, "changed_rows": 30, "open_rows": 50, "sql_refused": "duplicate key"}).story["parked"]
    assert shown["rows_omitted"] == 29
    assert "the database refuses it now: duplicate key; 49 more rows" in shown["sql_note"]
    assert "WHERE saga_id = 's1' AND step = 'a' AND generation = 1" in shown["sql_note"]


@pytest.mark.parametrize(
    ("details", "uses", "corrections"),
    [
        ({"cannot_heal": True}, "sql", ["--with", "--definition FILE"]),
        ({"cannot_heal": True}, RESTORE, ["--definition FILE"]),
        ({"cannot_heal": True, "code": "42P01"}, RESTORE, []),
        ({"cannot_heal": True, "code": 1142}, RESTORE, []),
        ({"cannot_heal": True, "code": "42P01"}, "shop.untie", ["--with", "--definition FILE"]),
        ({"code": "23503"}, "sql", []),
        ({"cannot_heal": True, "statement": "select", "code": "42P01"}, "sql", ["--with", "--definition FILE"]),
        ({"cannot_heal": True, "statement": "select", "code": "42P01"}, "shop.untie", []),
        ({"cannot_heal": True, "statement": "select", "code": 1146}, "shop.untie", []),
        ({"cannot_heal": True, "statement": "select", "code": "22003"}, "shop.untie", ["--with", "--definition FILE"]),
    ],
)
def test_a_retry_that_would_fail_again_is_offered_with_a_correction(
    details: dict[str, Any], uses: str, corrections: list[str]
) -> None:
    (shown,) = parked(details, uses).story["parked"]
    assert [command.split(" retry ")[0] for command in shown["commands"][: len(corrections)]] == [
        "saga resolve s1 a"
    ] * len(corrections)
    assert all(text in command for text, command in zip(corrections, shown["commands"], strict=False))
    assert len(shown["commands"]) == len(corrections) + len(shown["decisions"])


@pytest.mark.parametrize("details", [{}, {"who": "ada"}])
def test_an_undo_that_has_looked_at_no_row_shows_none(details: dict[str, Any]) -> None:
    (shown,) = parked(details).story["parked"]
    assert not {"system", "rows", "sql"} & shown.keys()


def test_the_residue_names_the_rows() -> None:
    driver = parked({**DETAILS, "sql": []}, now=DETAILS).decide("a", "skip")
    assert driver.state == "RESIDUE"
    (residue,) = driver.story["residue"]
    command = residue.pop("command")
    assert residue == {"step": "a", "kind": "effect_stays", "system": "shop", "key": ROW["row"]}
    assert command.startswith("DO $saga$ #variable_conflict use_column BEGIN SET LOCAL TimeZone = 'UTC';")
    assert f"; {SQL['sql']}; IF NOT FOUND OR NOT {SQL['check']} THEN RAISE" in command


OTHER = {"row": "the row id=2 of t", "sql": "DELETE FROM t WHERE id = 2", "check": None}
TWO = {**DETAILS, "open_rows": 5, "sql": [OTHER, SQL, OTHER]}


def test_the_rows_of_a_residue_are_restored_together() -> None:
    """Rows may be in each other's way: all commands of the residue together restore them, too."""
    first, second, others = parked(DETAILS, now=TWO).decide("a", "skip").story["residue"]
    assert (first["key"], second["key"]) == (OTHER["row"], SQL["row"])
    assert first["command"] == restoring_command("postgresql", [OTHER, SQL, OTHER])
    assert second["command"] == "-- restored by the SQL of the row id=2 of t"
    assert others["command"].startswith("SELECT table_name")


def test_the_preview_of_a_skip_names_all_rows_that_stay() -> None:
    driver = parked(TWO)
    skip = DecisionMade("a", "skip", "because", "ada", driver.now)
    assert consequences(driver.machine, skip) == [
        "undo a: its rows stay as they are now: the row id=1 of t, the row id=2 of t and 3 more; the saga will end "
        "RESIDUE and list them"
    ]


def test_the_view_says_to_which_undo_rows_are_left() -> None:
    first, second = undone_by(RESTORE), replace(undone_by(RESTORE), id="b")
    leaves_rows = Outcome.done({"restored": 0, "left_to": ["a"]})
    parks = Outcome("failed", failure=Failure("Parked", "why", DETAILS), attempt=1, retryable=False, park_reason="why")
    answers = {"c": "rejected", "b~undo": leaves_rows, "a~undo": parks}
    driver = MachineDriver(saga(first, second, step("c")), answers=answers, restore=True).run()
    assert driver.row("b")["compensation"]["left_to"] == ["a"]
    assert "left_to" not in driver.row("a")["compensation"]


def test_nothing_remains_where_an_attempt_has_restored_the_rows() -> None:
    driver = parked(DETAILS, now=None)
    driver.answers["saga.skip"] = Outcome.done({"restored": 1})
    assert (driver.decide("a", "skip").state, driver.story["residue"]) == ("COMPENSATED", [])


def test_the_residue_says_where_the_other_rows_are() -> None:
    residue = parked(DETAILS, now={**DETAILS, "open_rows": 50}).decide("a", "skip").story["residue"]
    assert len(residue) == 2
    assert (residue[-1]["system"], residue[-1]["key"]) == ("shop", "s1/a")
    assert residue[-1]["command"].startswith("SELECT table_name, row_key, before_image, after_image FROM saga_image")


def test_a_skip_is_recorded_once_the_database_answers() -> None:
    driver = parked(DETAILS).decide("a", "skip")
    assert (driver.state, driver.story["residue"], driver.story["parked"]) == ("COMPENSATING", [], [])
    driver.answers["saga.skip"] = Outcome.done(DETAILS, marker="skipped")
    (residue,) = driver.fire("a~skip-retry").story["residue"]
    assert (driver.state, residue["key"]) == ("RESIDUE", ROW["row"])


def test_a_second_skip_does_not_wait_for_the_database() -> None:
    driver = parked(DETAILS).decide("a", "skip").wait(3600).decide("a", "skip")
    (residue,) = driver.story["residue"]
    assert (driver.state, residue["system"], residue["key"]) == ("RESIDUE", "shop", "s1/a")
    assert residue["command"].startswith("SELECT table_name, row_key, before_image, after_image FROM saga_image")


def test_a_skip_that_the_database_refuses_parks_the_undo_again() -> None:
    driver = parked(DETAILS)
    refused = Failure("Error", "permission denied for table saga_image")
    driver.answers["saga.skip"] = Outcome("failed", failure=refused, attempt=1, retryable=False)
    (shown,) = driver.decide("a", "skip").story["parked"]
    assert shown["why"] == "the decision cannot be recorded: permission denied for table saga_image"


def test_the_residue_of_a_prepared_transaction_is_found_by_the_reconciliation() -> None:
    (residue,) = parked({}, ROLLBACK).decide("a", "skip").story["residue"]
    assert (residue["system"], residue["key"], residue["command"]) == ("shop", "s1/a", "saga reconcile s1")
