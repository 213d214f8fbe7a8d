"""The undo and the confirm of a step that was called with arguments of an operator (`retry --with`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Savepoint
from sagas.machine.corrections import note
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

OTHER = {"n": 10, "a": "A"}
FULL = {"n": "${{ input.n }}", "a": "${{ input.acc }}"}
INPUT = {"n": 10, "acc": "X"}


def corrected(first: Any, *more: Any, answers: dict[str, Any] | None = None, **options: Any) -> MachineDriver:
    """A saga whose step `a` was refused and then corrected."""
    replies = {"a": ["rejected", "done"], **(answers or {})}
    driver = MachineDriver(saga(first, *more), INPUT, replies, **options).run()
    assert driver.states()["a"] == "PARKED"
    return driver.decide("a", "retry", arguments=OTHER).run()


def debit(**more: Any) -> Any:
    return step("a", do=op("debit", FULL, on="shop"), on_failure="park", **more)


@pytest.mark.parametrize(("uses", "form"), [("sql", "'[{…}]'"), ("debit", "'{…}'")])
def test_the_advice_has_the_form_of_the_result(uses: str, form: str) -> None:
    driver = MachineDriver(saga(step("a", do=op(uses, FULL, on="shop"), on_failure="park")), INPUT, {"a": "rejected"})
    (parked,) = driver.run().story["parked"]
    (done,) = [command for command in parked["commands"] if " done " in command]
    assert done.endswith(f" --result {form}")


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("on", ["shop", "bank", None])
@pytest.mark.parametrize(("given", "sent"), [(None, {"n": 10, "a": "X"}), (OTHER, OTHER)])
def test_an_undo_that_is_written_out_asks_first(on: str | None, given: Any, sent: Any, restore: bool) -> None:
    first = debit(compensate=undo(op("credit", FULL, on=on)))
    answers = {"b": "rejected", "a~undo-mark": "elsewhere"}
    driver = corrected(first, step("b"), answers=answers, restore=restore)
    (parked,) = driver.story["parked"]
    assert (driver.state, parked["op"]) == ("PARKED", "undo")
    assert not [id for id in driver.log if "undo" in id]
    assert 'an operator had corrected, {"n": 10, "a": "A"}, and its compensation has arguments' in parked["why"]
    assert 'do not follow the correction, {"n": 10, "a": "X"}: compare them' in parked["why"]
    assert "--with '{…}'" in parked["commands"][0]
    assert driver.row("a")["compensation"]["arguments"] == {"n": 10, "a": "X"}
    driver.decide("a", "retry", arguments=given).run()
    assert (driver.state, driver.call("a~undo").arguments) == ("COMPENSATED", sent)


@pytest.mark.parametrize(("given", "sent"), [(None, {"n": 10, "a": "X"}), (OTHER, OTHER)])
def test_a_confirm_that_is_written_out_asks_first(given: Any, sent: Any) -> None:
    driver = corrected(debit(confirm=op("book", FULL, on="shop")), step("b"))
    assert (driver.state, driver.story["parked"][0]["op"]) == ("PARKED", "confirm")
    assert "a~confirm" not in driver.log
    driver.decide("a", "retry", arguments=given).run()
    assert (driver.state, driver.call("a~confirm").arguments) == ("COMPLETED", sent)


KEYS = {"key": "${{ step.forward_key }}", "lines": ["${{ steps.a.result.ok }}"]}


@pytest.mark.parametrize("compensate", [undo("credit"), undo(op("credit", KEYS, on="shop"))])
def test_an_undo_that_follows_the_call_runs(compensate: Any) -> None:
    driver = corrected(debit(compensate=compensate), step("b"), answers={"b": "rejected"})
    assert driver.state == "COMPENSATED"
    sent = OTHER if compensate.alternates[0].with_ is None else {"key": "s1/a@2", "lines": [True]}
    assert driver.call("a~undo").arguments == sent


def test_the_next_alternate_asks_again() -> None:
    first = debit(compensate=undo(op("credit", FULL, on="shop"), op("by_mail", FULL, on="shop")))
    driver = corrected(first, step("b"), answers={"b": "rejected", "a~undo": "rejected"})
    driver.decide("a", "retry").run()
    assert (driver.state, driver.log[-1]) == ("PARKED", "a~undo")
    driver.decide("a", "retry").run()
    assert (driver.state, driver.log[-1]) == ("COMPENSATED", "a~undo.1")


def test_an_undo_asks_nothing_when_an_attempt_before_the_correction_had_the_effect() -> None:
    first = debit(compensate=undo(op("credit", FULL, on="shop")))
    answers = {"a": "unknown", "a~seal": "done", "b": "rejected"}
    driver = MachineDriver(saga(first, step("b")), INPUT, answers).run()
    driver.decide("a", "retry", arguments=OTHER).run()
    assert (driver.state, driver.call("a~undo").arguments) == ("COMPENSATED", {"n": 10, "a": "X"})


def test_a_skipped_undo_names_the_call_that_it_was_to_undo() -> None:
    first = debit(compensate=undo(op("credit", FULL, on="shop")))
    driver = corrected(first, step("b"), answers={"b": "rejected"}).decide("a", "skip").run()
    (row,) = driver.story["residue"]
    assert row["command"] == 'credit {"n":10,"a":"X"}; the step was called with {"n":10,"a":"A"} instead'


def test_the_note_names_what_does_not_follow() -> None:
    assert note(debit(compensate=undo("credit"))) is None
    both = debit(compensate=undo(op("credit", FULL, on="shop")), confirm=op("book", {"n": 1}, on="shop"))
    assert (note(both) or "").startswith("the compensation and the confirm of a will not follow --with")


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("failing", ["b", "c"])
def test_a_correction_stays_in_the_runs_after_a_savepoint(failing: str, restore: bool) -> None:
    """In its second run the saga fails in `c`, or in `b` before the corrected step is reached again."""
    answers = {"a": ["rejected", "done"], "b": ["done", "rejected", "done"], "c": ["rejected", "done"]}
    answers = {name: answer for name, answer in answers.items() if name != "b" or failing == "b"}
    steps = (step("p", savepoint=Savepoint(4)), step("b"), debit(compensate=undo("credit")), step("c"))
    driver = MachineDriver(saga(*steps), INPUT, answers, restore=restore).run()
    driver.decide("a", "retry", arguments=OTHER).run()
    assert (driver.state, driver.row("a")["generation"]) == ("COMPLETED", 3)
    assert driver.call("a").arguments == OTHER


def test_a_correction_of_other_arguments_does_not_stay() -> None:
    """A result that an operator has given for a step says nothing about that of its next run."""
    answers = {
        "b": [Outcome.done({"id": 1}), Outcome.done({"id": 2})],
        "a": ["rejected", "done"],
        "c": ["rejected", "done"],
    }
    first = step("a", do=op("debit", {"id": "${{ steps.b.result.id }}"}, on="shop"), on_failure="park")
    steps = (step("p", savepoint=Savepoint(4)), step("b"), replace(first, compensate=undo("credit")), step("c"))
    driver = MachineDriver(saga(*steps), INPUT, answers).run()
    driver.decide("a", "retry", arguments={"id": 7}).run()
    assert (driver.state, driver.call("a").arguments) == ("COMPLETED", {"id": 2})


ACCOUNT = "${{ input.acc }}"


@pytest.mark.parametrize(
    ("asked", "more", "sent"),
    [
        (None, {}, OTHER),  # the short form
        ({"account": ACCOUNT, "key": "${{ step.key }}"}, {}, {"account": "A", "key": "s1/a@2"}),
        ({"of": [{"account": ACCOUNT}], "n": "${{ input.n }}"}, {}, {"of": [{"account": "A"}], "n": 10}),
        ({"n": "${{ input.n + 1 }}"}, {}, {"n": 11}),  # has not been corrected
        ({"account": ACCOUNT}, {"done": "response.ok", "absent": "response.n == input.n"}, {"account": "A"}),
        ({"path": "/accounts/${{ input.acc }}"}, {}, None),
        ({"account": ACCOUNT}, {"done": "response.account == input.acc", "absent": "false"}, None),
        ({"all": "${{ input }}"}, {}, None),
    ],
)
@pytest.mark.parametrize("restore", [False, True])
def test_a_probe_asks_about_the_call_with_corrected_arguments(
    asked: Any, more: dict[str, Any], sent: Any, restore: bool
) -> None:
    """One that would ask about another effect is not asked."""
    first = step("a", do=op("debit", FULL, idempotent=False), on_failure="park", settle=0.0)
    lookup = replace(probe(**more), operation=op("ask", asked))
    answer = Outcome.done({"n": 10, "ok": False}) if more else "absent"
    answers: dict[str, Any] = {"a": ["rejected", "unknown", "done"], "a~probe": answer}
    driver = MachineDriver(
        saga(replace(first, probe=lookup, compensate=undo("credit"))), INPUT, answers, restore=restore
    )
    driver.run().decide("a", "retry", arguments=OTHER).run()
    if sent is None:
        assert (driver.state, "a~probe" in driver.log) == ("PARKED", False)
        assert driver.row("a")["outcome"] == "unknown"
        assert "retry" not in driver.story["parked"][0]["decisions"]
    else:
        assert (driver.state, driver.call("a~probe").arguments) == ("COMPLETED", sent)


def test_each_item_is_probed_with_its_own_correction() -> None:
    first = step("a", do=op("debit", {"a": "${{ item }}"}, idempotent=False), on_failure="park", settle=0.0)
    lookup = replace(probe(), operation=op("ask", {"account": "${{ item }}"}))
    first = replace(first, for_each="${{ ['X', 'Y'] }}", probe=lookup, compensate=undo("credit"))
    answers = {f"a#{n}": ["rejected", "unknown", "done"] for n in (0, 1)} | {f"a#{n}~probe": ["absent"] for n in (0, 1)}
    driver = MachineDriver(saga(first), INPUT, answers).run()
    for number in (0, 1):
        driver.decide(f"a#{number}", "retry", arguments={"a": f"given {number}"}).run()
        assert driver.call(f"a#{number}~probe").arguments == {"account": f"given {number}"}
    assert driver.state == "COMPLETED"
