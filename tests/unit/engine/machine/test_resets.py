"""A run that Temporal has reset: what the guards know of the saga counts, and not what its earlier state says."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Locks, Savepoint, StepDefinition
from sagas.machine.earlier.known_steps import LeftState
from sagas.protocol.messages import CancelRequested, RunWasReset
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, op, outcome, probe, saga, step, undo

PAYS = saga(step("hold"), step("pay", kind="pivot"))


def reset(driver: MachineDriver, *, pivot_done: bool = True, **generations: int) -> MachineDriver:
    return driver.feed(RunWasReset(driver.now, generations, "past" if pivot_done else "before"))


def test_a_pivot_that_is_behind_goes_on_with_its_highest_generation() -> None:
    driver = MachineDriver(PAYS, hold=["pay"]).start()
    reset(driver, pay=2)
    driver.end("pay", "late")  # the first generation was sealed before the second one began
    assert driver.call("pay").generation == 2
    assert driver.state == "COMPLETED"


def test_a_step_that_has_not_begun_begins_with_its_highest_generation() -> None:
    driver = MachineDriver(PAYS, hold=["hold"]).start()
    reset(driver, pay=3).end("hold")
    assert driver.call("pay").generation == 3


@pytest.mark.parametrize("restore", [False, True])
def test_nothing_is_undone_while_the_effect_of_the_pivot_is_in_place(restore: bool) -> None:
    driver = MachineDriver(saga(step("hold"), step("pay", kind="pivot"), deadline=60.0), hold=["hold"], restore=restore)
    reset(driver.start())
    assert driver.machine.cancel_response() == "past the point of no return"
    driver.cancel().wait(120)
    driver.end("hold", "rejected")
    assert (driver.state, driver.undone) == ("PARKED", [])
    assert driver.refusal("hold", "compensate")
    driver.decide("hold", "skip")
    assert (driver.state, driver.undone, driver.log[-1]) == ("COMPLETED", [], "pay")


@pytest.mark.parametrize("locks", [None, Locks(["k"], "shop")])
def test_an_undone_saga_that_learns_it_before_its_start_does_nothing(locks: Locks | None) -> None:
    driver = MachineDriver(saga(step("a"), step("b"), locks=locks))
    reset(driver, pivot_done=False, a=2)
    driver.feed(CancelRequested(driver.now, kind="terminated", message="undone before")).start().run()
    assert (driver.state, driver.log, driver.undone) == ("COMPENSATED", [], [])


def test_a_pivot_whose_effect_is_in_place_parks_whatever_its_call_says() -> None:
    driver = MachineDriver(PAYS, answers={"pay": "late"}, hold=["hold"]).start()
    reset(driver).end("hold")
    assert (driver.state, driver.undone) == ("PARKED", [])


def test_a_cancel_finds_the_later_effect_of_a_pivot_that_was_rejected_first() -> None:
    rejected = step("pay", kind="pivot", on_failure="park")
    driver = MachineDriver(saga(step("hold"), rejected), answers={"pay": "rejected", "pay~seal": "done"}).run()
    assert driver.state == "PARKED"
    reset(driver, pivot_done=False, pay=2).decide("pay", "compensate")
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert [call.generation for call in driver.calls if call.op == "seal"] == [2]


def test_a_rollback_undoes_the_highest_generation_of_a_step() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b"]).start()
    reset(driver, pivot_done=False, a=2).end("b", "rejected")
    assert (driver.state, driver.undone, driver.call("a~undo").generation) == ("COMPENSATED", ["a"], 2)


def test_a_rollback_seals_the_highest_generation_of_a_step_that_failed_first() -> None:
    failed = step("b", on_failure="park")
    driver = MachineDriver(saga(step("a"), failed), answers={"b": "rejected"}).run()
    reset(driver, pivot_done=False, b=2)
    driver.answers["b~seal"] = outcome("done")
    driver.cancel().run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])


CALLS = saga(step("hold", on=None), step("pay", kind="pivot"))


def test_a_rejection_of_a_participant_after_a_reset_is_no_proof() -> None:
    """The earlier run may have called it with the same key, and with other arguments."""
    driver = MachineDriver(CALLS, answers={"hold": "rejected"}, hold=["hold"]).start()
    reset(driver, pivot_done=False).end("hold", "rejected").run()
    assert (driver.state, driver.undone, driver.row("hold")["outcome"]) == ("COMPENSATED", ["hold"], "unknown")
    assert driver.story["reason"]["kind"] == "rejected"


def test_a_call_after_a_reset_tells_the_worker_that_it_is_not_the_first() -> None:
    remembers = op("act.pay", {}, remembers_rejections=True)
    driver = MachineDriver(saga(step("hold"), step("pay", do=remembers, on=None)), hold=["hold", "pay"]).start()
    reset(driver, pivot_done=False).end("hold")
    assert (driver.call("pay").earlier_attempts, driver.call("pay").remembers_rejections) == (1, False)
    assert driver.row("pay")["attempts"] == 0


@pytest.mark.parametrize(("says", "calls"), [("absent", 2), ("found", 1)])
def test_a_participant_that_ignores_keys_is_probed_before_it_is_called_again(says: str, calls: int) -> None:
    careless = step("hold", on=None, idempotent=False, probe=probe(seals=True))
    driver = MachineDriver(saga(step("first"), careless), answers={"hold~probe": says}, hold=["first"]).start()
    reset(driver, pivot_done=False).end("first").run()
    assert [call.op for call in driver.calls if call.entry == "hold"] == ["probe", "do"][:calls]
    assert driver.state == "COMPLETED"


def test_a_participant_that_ignores_keys_and_cannot_be_probed_is_undone() -> None:
    careless = step("hold", on=None, idempotent=False)
    driver = MachineDriver(saga(step("first"), careless), hold=["first"]).start()
    reset(driver, pivot_done=False).end("first").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["hold", "first"])
    assert "an earlier run" in driver.story["reason"]["message"]


def test_an_undo_that_is_rejected_after_a_reset_has_no_alternate() -> None:
    undone = step("hold", on=None, compensate=undo("un.hold", "other", on=None))
    driver = MachineDriver(saga(undone, step("b")), answers={"hold~undo": "rejected"}, hold=["b"]).start()
    reset(driver, pivot_done=False).end("b", "rejected").run()
    assert (driver.state, set(driver.undone)) == ("PARKED", {"hold"})


@pytest.mark.parametrize("restore", [False, True])
def test_a_run_that_was_reset_to_its_first_task_learns_of_it_before_it_begins(restore: bool) -> None:
    driver = MachineDriver(CALLS, answers={"hold": "rejected"}, restore=restore)
    reset(driver, pivot_done=False).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["hold"])


def reset_from(driver: MachineDriver, earlier: MachineDriver) -> MachineDriver:
    """The machine learns what the run before has left."""
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    commit_point = "past" if left.committed else "before"
    event = RunWasReset(driver.now, left.generations, commit_point, left.records, left.children)
    driver.feed(event)
    if left.goes_backward:
        driver.feed(CancelRequested(driver.now, kind="terminated", message="undone before"))
    return driver


THREE_CALLS = saga(step("first", on=None), step("pay", on=None), step("send", on=None))


@pytest.mark.parametrize(("decision", "end"), [("done", "COMPENSATED"), ("skip", "RESIDUE")])
def test_a_parked_undo_about_which_an_operator_has_decided_later_is_not_asked_again(decision: str, end: str) -> None:
    answers = {"pay~undo": "rejected"}
    earlier = MachineDriver(THREE_CALLS, answers=answers, hold=["send"]).start().cancel().end("send").run()
    driver = MachineDriver(THREE_CALLS, answers=answers, hold=["send"]).start().cancel().end("send").run()
    earlier.hold.add("first~undo")
    earlier.decide("pay", decision, evidence="a call")
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    operator, residue = left.operator, left.residue
    event = RunWasReset(driver.now, {}, "before", left.records, left.children, operator=operator, residue=residue)
    driver.feed(event).run()
    assert (driver.state, driver.undone) == (end, ["send", "pay", "first"])


def test_an_undo_that_an_operator_has_decided_is_not_made_again() -> None:
    answers = {"first~undo": "rejected", "pay~undo": "rejected"}
    earlier = MachineDriver(THREE_CALLS, answers=answers, hold=["send"]).start().cancel().end("send").run()
    earlier.decide("pay", "done", evidence="a call").run()
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    driver = MachineDriver(THREE_CALLS, hold=["send"]).start()
    driver.feed(RunWasReset(driver.now, {}, "before", left.records, left.children, operator=left.operator))
    driver.feed(CancelRequested(driver.now, kind="terminated", message="undone before")).end("send").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["send", "first"])


@pytest.mark.parametrize("restore", [False, True])
def test_a_rollback_undoes_the_calls_of_the_run_before(restore: bool) -> None:
    earlier = MachineDriver(THREE_CALLS, answers={"pay": Outcome.done({"charge": 7})}, hold=["send"]).start()
    driver = MachineDriver(THREE_CALLS, hold=["first"], restore=restore).start()
    reset_from(driver, earlier).cancel().end("first").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["send", "pay", "first"])
    assert {row["id"]: row["outcome"] for row in driver.story["steps"]} == {
        "first": "done", "pay": "done", "send": "unknown",
    }  # fmt: skip
    assert driver.row("pay")["result"] == {"charge": 7}


def test_calls_that_were_certainly_without_effect_are_not_undone() -> None:
    pays = saga(step("first", on=None), step("pay", on=None, on_failure="park"), step("send", on=None))
    earlier = MachineDriver(pays, answers={"pay": "rejected"}).run()
    assert earlier.state == "PARKED"
    driver = MachineDriver(pays, hold=["first"]).start()
    reset_from(driver, earlier).cancel().end("first").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["first"])


def test_the_steps_that_the_new_run_makes_again_are_its_own() -> None:
    earlier = MachineDriver(THREE_CALLS, hold=["send"]).start()
    driver = MachineDriver(THREE_CALLS, answers={"pay": Outcome.done({"charge": 8})}, hold=["first"]).start()
    reset_from(driver, earlier).end("first").run()
    assert (driver.state, driver.log) == ("COMPLETED", ["first", "pay", "send"])
    assert driver.row("pay")["result"] == {"charge": 8}


def test_a_call_goes_on_with_the_generation_and_the_result_of_the_run_before() -> None:
    repeats = saga(step("first", savepoint=Savepoint(2)), step("pay", on=None), step("send", on=None), step("last"))
    charges = [Outcome.done({"charge": number}) for number in (1, 2)]
    earlier = MachineDriver(repeats, answers={"pay": charges, "send": ["rejected", "done"]}, hold=["last"]).run()
    assert earlier.row("pay")["generation"] == 2
    driver = MachineDriver(repeats, answers={"pay": charges}, hold=["send"]).start()
    reset_from(driver, earlier).cancel().end("send", "rejected").run()
    assert (driver.call("pay~undo").generation, driver.row("pay")["result"]) == (2, {"charge": 2})


@pytest.mark.parametrize("guarded", [True, False])
def test_nothing_is_undone_after_the_commit_point_of_a_saga_without_a_pivot(guarded: bool) -> None:
    """The run before was reset while it confirmed what it had reserved."""
    own = {} if guarded else {"on": None}
    tcc = saga(step("hold", confirm=op("act.confirm", {}), **own), step("book", confirm=op("act.keep", {}), **own))
    earlier = MachineDriver(tcc, hold=["book~confirm"]).run()
    assert earlier.state == "COMMITTED"
    driver = MachineDriver(tcc, hold=["hold"]).start()
    reset_from(driver, earlier)
    assert driver.machine.cancel_response() == "past the point of no return"
    driver.cancel().end("hold").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])


def test_a_run_whose_earlier_one_went_backward_goes_backward() -> None:
    earlier = MachineDriver(THREE_CALLS, answers={"send": "rejected"}, hold=["pay~undo"]).run()
    assert earlier.state == "COMPENSATING"
    driver = MachineDriver(THREE_CALLS, hold=["first"]).start()
    reset_from(driver, earlier).end("first").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["pay", "first"])
    assert driver.call("pay~undo").earlier_attempts == 1


def cancelled_before_pivot(pivot: StepDefinition, answers: dict[str, Any], *, restore: bool = False) -> MachineDriver:
    """A run after a reset that is cancelled in its first step, while the pivot of the run before is in flight."""
    definition = saga(step("first", on=None), step("hold"), pivot, step("last", kind="retriable"))
    earlier = MachineDriver(definition, hold=["pay"]).start()
    assert list(earlier.flights) == ["pay"]
    driver = MachineDriver(definition, answers=answers, hold=["first"], restore=restore).start()
    reset_from(driver, earlier)
    assert driver.machine.cancel_response() == "recorded"
    return driver.cancel()


@pytest.mark.parametrize("restore", [False, True])
def test_a_guarded_pivot_in_flight_in_the_run_before_is_sealed_before_the_rollback(restore: bool) -> None:
    driver = cancelled_before_pivot(step("pay", kind="pivot"), {}, restore=restore).end("first").run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["first", "pay~seal", "hold~undo", "first~undo"])


@pytest.mark.parametrize("restore", [False, True])
def test_a_guarded_pivot_that_the_run_before_has_made_forbids_the_rollback(restore: bool) -> None:
    driver = cancelled_before_pivot(step("pay", kind="pivot"), {"pay~seal": "done"}, restore=restore)
    driver.end("first").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert driver.log == ["first", "pay~seal", "hold", "pay", "last"]


def test_an_unguarded_pivot_in_flight_in_the_run_before_parks() -> None:
    driver = cancelled_before_pivot(step("pay", kind="pivot", on=None), {}).end("first").run()
    assert (driver.state, driver.undone, driver.row("pay")["outcome"]) == ("PARKED", [], "unknown")
    driver.decide("pay", "compensate", evidence="the bank has none").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["hold", "first"])


def test_a_pivot_that_the_run_before_has_made_is_probed_with_its_arguments() -> None:
    made = op("act.pay", {"of": "${{ steps.hold.result.number }}"})
    pivot = step("pay", kind="pivot", do=made, on=None, probe=probe(seals=True))
    answers = {"hold": Outcome.done({"number": 7}), "pay~probe": "found"}
    definition = saga(step("first", on=None), step("hold"), pivot)
    earlier = MachineDriver(definition, answers=answers, hold=["pay"]).start()
    driver = MachineDriver(definition, answers=answers, hold=["first"]).start()
    reset_from(driver, earlier).cancel().end("first").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert driver.log == ["first", "pay~probe", "hold", "pay"]


@pytest.mark.parametrize(("end", "state"), [("COMPENSATED", "COMPENSATED"), ("COMPLETED", "COMPLETED")])
def test_a_nested_pivot_of_the_run_before_decides(end: str, state: str) -> None:
    nested = step("pay", kind="pivot", on=None, do=op("saga", {"name": "child", "input": {}}))
    driver = cancelled_before_pivot(nested, {"pay~earlier": (end, None)}).end("first").run()
    assert (driver.state, driver.undone) == (state, [] if state == "COMPLETED" else ["hold", "first"])


def test_a_pivot_that_the_run_before_has_left_out_is_not_sought() -> None:
    definition = saga(step("first", on=None), step("pay", kind="pivot", if_="1 == 2"), step("last", kind="retriable"))
    earlier = MachineDriver(definition, hold=["last"]).start()
    driver = MachineDriver(definition, hold=["first"]).start()
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    driver.feed(RunWasReset(driver.now, left.generations, "before", left.records, left.children))
    driver.cancel().end("first").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["first"])


USES_RESULT = undo(op("un.pay", {"of": "${{ steps.pay.result.charge }}"}))
PAYS_ELSEWHERE = saga(step("first", on=None), step("pay", compensate=USES_RESULT, on_failure="park"), step("last"))
DECIDED = Outcome.done({"charge": 7}, marker="elsewhere")
"""The guard's answer to a seal of a step whose undo it has decided for another database or service."""


def undecided(driver: MachineDriver, *, state_is_lost: bool = False) -> MachineDriver:
    """Nobody knows whether the undo of `pay` was made before the reset."""
    event = RunWasReset(driver.now, {}, "before", state_is_lost=state_is_lost, undecided_undos={"pay": 1})
    return driver.feed(event)


@pytest.mark.parametrize("restore", [False, True])
def test_an_undo_that_is_made_again_has_the_result_of_its_step(restore: bool) -> None:
    answers = {"pay": "late", "pay~seal": DECIDED}
    driver = MachineDriver(PAYS_ELSEWHERE, answers=answers, hold=["first"], restore=restore).start()
    undecided(driver).end("first").run()
    assert (driver.state, driver.undone.count("pay"), driver.story["reason"]["kind"]) == ("COMPENSATED", 2, "late")
    assert driver.call("pay~undo").arguments == {"of": 7}


def test_an_undo_of_a_step_ahead_that_is_made_again_has_the_result_of_its_step() -> None:
    driver = MachineDriver(PAYS_ELSEWHERE, answers={"pay~seal": DECIDED}, hold=["first"]).start()
    undecided(driver, state_is_lost=True).cancel().end("first").run()
    assert driver.state == "COMPENSATED"
    assert driver.call("pay~undo").arguments == {"of": 7}


def test_a_step_whose_undo_is_known_to_be_made_is_not_undone_again() -> None:
    driver = MachineDriver(PAYS_ELSEWHERE, answers={"pay": "unknown", "pay~seal": DECIDED}).run()
    assert driver.state == "PARKED"
    driver.cancel().run()
    assert (driver.state, driver.undone, driver.row("pay")["outcome"]) == ("COMPENSATED", ["first"], "late")


@pytest.mark.parametrize("restore", [False, True])
def test_a_retry_with_new_arguments_does_not_forget_an_undo_that_is_undecided(restore: bool) -> None:
    answers = {"pay": ["unknown", "done"], "pay~seal": DECIDED}
    driver = MachineDriver(PAYS_ELSEWHERE, answers=answers, hold=["first"], restore=restore).start()
    undecided(driver).end("first").run()
    assert driver.state == "PARKED"
    driver.decide("pay", "retry", arguments={"to": "kim"}).run()
    assert (driver.state, driver.story["reason"]["kind"]) == ("COMPENSATED", "late")
    assert (driver.call("pay~undo").arguments, driver.call("pay~undo").generation) == ({"of": 7}, 1)


def test_a_retry_with_new_arguments_of_a_step_that_is_known_to_be_undone_runs_it_again() -> None:
    answers = {"pay": ["unknown", "done"], "pay~seal": DECIDED}
    driver = MachineDriver(PAYS_ELSEWHERE, answers=answers).run()
    driver.decide("pay", "retry", arguments={"to": "kim"}).run()
    assert (driver.state, driver.undone, driver.row("pay")["generation"]) == ("COMPLETED", [], 2)
