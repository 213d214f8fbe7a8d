"""A run that repeats one that was deleted goes backward before it has come to where that one was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagas.definition.model import Definition, Savepoint
from sagas.machine.earlier.known_steps import LeftState
from sagas.protocol.messages import RunWasReset, UndoSaga
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

WAIT = step("go", kind="read", do=op("wait", {"signal": "go"}))
LINE = saga(step("a"), WAIT, step("b"), step("c"))
GUARDED_PIVOT = saga(step("a"), WAIT, step("b"), step("pay", kind="pivot"), step("last", kind="retriable"))
HTTP_PIVOT = saga(step("a"), WAIT, step("b"), step("pay", kind="pivot", on=None), step("last", kind="retriable"))
STORED = Outcome.done({"number": 7})


def cancelled(definition: Definition, answers: dict[str, object], *, restore: bool = False) -> MachineDriver:
    return MachineDriver(definition, answers=answers, repeats=True, restore=restore).run(until=0.0).cancel()


@pytest.mark.parametrize("restore", [False, True])
def test_guarded_steps_ahead_are_asked_of_their_guard_and_undone(restore: bool) -> None:
    driver = cancelled(LINE, {"b~seal": STORED}, restore=restore).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])
    assert driver.log == ["a", "b~seal", "c~seal", "b~undo", "a~undo"]
    assert (driver.row("b")["outcome"], driver.row("b")["result"]) == ("done", {"number": 7})


def test_nothing_is_asked_about_steps_behind_one_that_never_happened() -> None:
    driver = cancelled(LINE, {}).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b~seal", "a~undo"])


def test_a_run_that_repeats_no_other_asks_nothing() -> None:
    driver = MachineDriver(LINE).run(until=0.0).cancel()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "a~undo"])


def test_a_failure_looks_ahead_like_a_cancel() -> None:
    answers = {"b": "rejected", "c~seal": "done"}
    driver = MachineDriver(saga(step("a"), step("b"), step("c")), answers=answers, repeats=True).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "a"])


def test_the_results_of_steps_ahead_are_there_for_the_undos_of_later_ones() -> None:
    ahead = step("c", with_={"of": "${{ steps.b.result.number }}"}, compensate=undo(op("un.c", None, on="shop")))
    driver = cancelled(saga(step("a"), WAIT, step("b"), ahead), {"b~seal": STORED, "c~seal": "done"}).run()
    assert (driver.state, driver.call("c~undo").arguments) == ("COMPENSATED", {"of": 7})


def test_an_undo_whose_arguments_nobody_knows_parks() -> None:
    ahead = step("b", with_={"of": "${{ steps.go.result.by }}"}, compensate=undo(op("un.b", None, on="shop")))
    driver = cancelled(saga(step("a"), WAIT, ahead), {"b~seal": "done"}).run()
    assert (driver.state, driver.undone) == ("PARKED", [])
    driver.decide("b", "retry", arguments={"of": "ada"})
    assert (driver.state, driver.call("b~undo").arguments) == ("COMPENSATED", {"of": "ada"})


def test_an_unguarded_step_ahead_is_undone_by_its_key() -> None:
    driver = cancelled(saga(step("a"), WAIT, step("b", on=None)), {}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])
    assert (driver.row("b")["outcome"], driver.call("b~undo").key) == ("unknown", "s1/b/undo")


@pytest.mark.parametrize(("says", "undone"), [("absent", ["a"]), ("found", ["b", "a"]), ("unsure", ["b", "a"])])
def test_an_unguarded_step_ahead_is_probed(says: str, undone: list[str]) -> None:
    probed = step("b", on=None, probe=probe(seals=True))
    driver = cancelled(saga(step("a"), WAIT, probed), {"b~probe": says}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", undone)


def test_an_unguarded_step_behind_one_that_never_happened_is_not_undone() -> None:
    driver = cancelled(saga(step("a"), WAIT, step("b"), step("c", on=None)), {}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


def test_a_step_that_may_be_left_out_proves_nothing_about_later_ones() -> None:
    driver = cancelled(saga(step("a"), WAIT, step("b", on_failure="continue"), step("c")), {"c~seal": "done"}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "a"])


@pytest.mark.parametrize(
    ("condition", "undone"),
    [
        ("1 == 2", ["a"]),
        ("1 == 1", ["b", "a"]),
        ("steps.a.result.ok == false", ["a"]),
        ("has(steps.go.result) && steps.go.result.ok", ["b", "a"]),
    ],
)
def test_a_step_whose_condition_is_certainly_false_is_not_touched(condition: str, undone: list[str]) -> None:
    driver = cancelled(saga(step("a"), WAIT, step("b", on=None, if_=condition)), {}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", undone)


def test_the_items_of_a_step_ahead_are_looked_up_and_undone_from_the_last() -> None:
    each = step(
        "b", for_each="${{ [1, 2, 3] }}", with_={"n": "${{ item }}"}, compensate=undo(op("un.b", None, on="shop"))
    )
    driver = cancelled(saga(step("a"), WAIT, each), {"b#0~seal": "done", "b#1~seal": "done"}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b#1", "b#0", "a"])
    assert driver.call("b#1~undo").arguments == {"n": 2}


def test_items_that_only_the_guard_knows_are_undone() -> None:
    each = step("b", for_each="${{ steps.go.result.list }}", compensate=undo(op("un.b", {}, on="shop")))
    driver = MachineDriver(saga(step("a"), WAIT, each), answers={"b#0~seal": "done", "b#1~seal": "done"}, repeats=True)
    driver.feed(RunWasReset(driver.now, {"b#1": 1}, "before")).run(until=0.0).cancel().run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b#1", "b#0", "a"])


def test_items_that_this_run_has_not_come_to_are_undone() -> None:
    each = step("b", for_each="${{ [1, 2, 3] }}", max_parallel=1)
    answers = {"b#1": "rejected", "b#2~seal": "done"}
    driver = MachineDriver(saga(step("a"), each), answers=answers, repeats=True).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b#2", "b#0", "a"])


def test_no_step_ahead_is_undone_twice_by_an_always() -> None:
    always = step("b", compensate=undo("un.b", always=True))
    driver = cancelled(saga(step("a"), WAIT, always), {"b~seal": "late"}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


@pytest.mark.parametrize("restore", [False, True])
def test_a_guarded_pivot_ahead_that_is_done_forbids_the_rollback(restore: bool) -> None:
    driver = MachineDriver(GUARDED_PIVOT, answers={"b~seal": "done", "pay~seal": "done"}, repeats=True, restore=restore)
    driver.run(until=0.0)
    assert driver.machine.cancel_response() == "recorded"
    driver.cancel()
    assert (driver.machine.cancel_response(), driver.state) == ("past the point of no return", "RUNNING")
    assert driver.states()["b"] == "PENDING"
    driver.signal("go").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert driver.log == ["a", "b~seal", "pay~seal", "b", "pay", "last"]


@pytest.mark.parametrize(
    ("seals", "log"),
    [({}, ["b~seal", "a~undo"]), ({"b~seal": "done"}, ["b~seal", "pay~seal", "b~undo", "a~undo"])],
)
@pytest.mark.parametrize("definition", [GUARDED_PIVOT])
def test_a_guarded_pivot_ahead_that_never_happened_allows_it(
    definition: Definition, seals: dict[str, object], log: list[str]
) -> None:
    driver = cancelled(definition, seals).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", *log])
    assert driver.story["reason"]["kind"] == "cancelled"


def test_an_unguarded_pivot_ahead_parks() -> None:
    driver = cancelled(HTTP_PIVOT, {"b~seal": "done"})
    assert (driver.state, driver.undone, list(driver.machine._run.parked)) == ("PARKED", [], ["pay"])  # pyright: ignore[reportPrivateUsage]
    driver.decide("pay", "compensate", evidence="the bank has none").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])


def test_an_unguarded_pivot_ahead_that_an_operator_has_found_forbids_the_rollback() -> None:
    driver = cancelled(HTTP_PIVOT, {"b~seal": "done"})
    driver.decide("pay", "done", evidence="the bank has it").signal("go").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert driver.call("pay").earlier_attempts == 1


def test_an_unguarded_pivot_behind_a_step_that_never_happened_was_not_made() -> None:
    driver = cancelled(HTTP_PIVOT, {}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


@pytest.mark.parametrize(("says", "state"), [("absent", "COMPENSATED"), ("found", "RUNNING"), ("unsure", "PARKED")])
def test_an_unguarded_pivot_ahead_is_probed_before_anything_is_undone(says: str, state: str) -> None:
    probed = step("pay", kind="pivot", on=None, probe=probe(seals=True))
    driver = cancelled(saga(step("a"), WAIT, probed), {"pay~probe": says}).run(until=600.0)
    assert (driver.state, driver.undone) == (state, ["a"] if state == "COMPENSATED" else [])


def test_a_failure_parks_if_the_pivot_ahead_is_done() -> None:
    definition = saga(step("a"), step("b"), step("pay", kind="pivot"))
    driver = MachineDriver(definition, answers={"b": "rejected", "pay~seal": "done"}, repeats=True).run()
    assert driver.state == "PARKED"
    driver.answers["b"] = "done"
    driver.decide("b", "retry").run()
    assert (driver.state, driver.undone) == ("COMPLETED", [])


def test_the_deadline_does_not_pass_a_pivot_ahead() -> None:
    definition = saga(step("a"), WAIT, step("pay", kind="pivot"), deadline=45.0)
    driver = MachineDriver(definition, answers={"pay~seal": "done"}, repeats=True).run(until=60.0)
    assert (driver.state, driver.undone) == ("RUNNING", [])
    assert driver.signal("go").run().state == "COMPLETED"


def test_steps_that_a_finish_has_cut_off_are_not_touched() -> None:
    finish = step("end", kind="read", do=op("finish", {"when": True, "output": None}))
    driver = MachineDriver(saga(step("a"), finish, step("b", on=None)), repeats=True).run()
    assert (driver.state, driver.log) == ("COMPLETED", ["a"])


def test_the_state_of_a_run_that_looks_ahead_is_that_of_its_followers() -> None:
    """A reset of the new run knows its state, and what that did not know."""
    earlier = MachineDriver(LINE, repeats=True).run(until=0.0)
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    driver = MachineDriver(LINE, answers={"b~seal": "done"}, hold=["a"], repeats=True).start()
    driver.feed(RunWasReset(driver.now, left.generations, "before", left.records, left.children))
    driver.cancel().end("a").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])


NESTED = step("b", on=None, compensate=None, do=op("saga", {"name": "child", "input": {}}))


def child_of(entry: str, *, id: str = "s1/b", repeats: bool = False) -> dict[str, object]:
    """The trace of a nested saga that an earlier run has started."""
    child: dict[str, object] = {"id": id, "step": entry, "saga": "child", "state": "RUNNING"}
    return {**child, "repeats": True} if repeats else child


def with_child_ahead(
    definition: Definition, answers: dict[str, object], *, restore: bool = False, repeats: bool = False
) -> MachineDriver:
    """A run that is cancelled before it comes to the nested saga `b` that an earlier run has started."""
    driver = MachineDriver(definition, answers=answers, repeats=True, restore=restore)
    traces = {"b": child_of("b", repeats=repeats)}
    return driver.feed(RunWasReset(driver.now, {"b": 1}, "before", children=traces)).run(until=0.0).cancel()


@pytest.mark.parametrize("restore", [False, True])
def test_a_nested_saga_ahead_that_has_completed_is_undone(restore: bool) -> None:
    driver = with_child_ahead(saga(step("a"), WAIT, NESTED, step("c")), {"c~seal": "done"}, restore=restore).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b~earlier", "c~seal", "c~undo", "b~undo", "a~undo"])


def test_steps_behind_a_nested_saga_that_had_not_completed_are_looked_up() -> None:
    """An operator may have skipped it."""
    driver = with_child_ahead(saga(step("a"), WAIT, NESTED, step("c")), {"b~earlier": ("COMPENSATED", None)}).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b~earlier", "c~seal", "a~undo"])


def test_the_end_of_a_nested_saga_that_was_started_again_tells_nothing_about_later_steps() -> None:
    answers = {"b~earlier": ("COMPENSATED", None), "c~seal": "done"}
    driver = with_child_ahead(saga(step("a"), WAIT, NESTED, step("c")), answers, repeats=True).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "a"])


def test_a_terminated_nested_saga_ahead_is_undone_from_its_last_state() -> None:
    driver = with_child_ahead(saga(step("a"), WAIT, NESTED), {"b~earlier": ("TERMINATED", None)}).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b~earlier", "b~undo", "a~undo"])


def test_the_own_compensation_of_a_nested_saga_ahead_waits_for_its_end() -> None:
    own = replace(NESTED, compensate=undo(op("un.b", {}, on="shop")))
    driver = with_child_ahead(saga(step("a"), WAIT, own), {"b~earlier": ("COMPENSATED", None)}).run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


def test_the_latest_generation_of_a_nested_saga_ahead_is_undone() -> None:
    driver = MachineDriver(saga(step("a"), WAIT, NESTED), hold=["b~undo"], repeats=True)
    traces = {"b": child_of("b", id="s1/b@2")}
    driver.feed(RunWasReset(driver.now, {"b": 2}, "before", children=traces)).run(until=0.0).cancel().run()
    command = driver.flights["b~undo"]
    assert isinstance(command, UndoSaga)
    assert command.saga_id == "s1/b@2"
    assert command.again is not None
    assert (command.again.saga_id, command.again.input, command.again.repeats) == ("s1/b@2", {}, True)


def test_a_nested_saga_that_ran_before_a_reset_is_rolled_back_with_its_parent() -> None:
    definition = saga(step("a"), NESTED)
    earlier = MachineDriver(definition, hold=["b"]).run()
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    driver = MachineDriver(definition, answers={"b~earlier": ("COMPENSATED", None)}, hold=["a"]).start()
    driver.feed(RunWasReset(driver.now, left.generations, "before", left.records, left.children))
    driver.cancel().end("a").run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b~earlier", "a~undo"])


def test_a_nested_saga_ahead_of_which_nobody_knows_the_name_parks() -> None:
    driver = MachineDriver(saga(step("a"), WAIT, NESTED, step("c")), answers={"c~seal": "done"}, repeats=True)
    driver.feed(RunWasReset(driver.now, {"b": 1}, "before")).run(until=0.0).cancel().run()
    assert (driver.state, driver.undone) == ("PARKED", ["c"])
    [parked] = driver.story["parked"]
    assert (parked["step"], parked["op"], "s1/b, whose run was deleted" in parked["why"]) == ("b", "undo", True)
    driver.decide("b", "done", evidence="it is undone").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "a"])


def test_a_nested_saga_without_traces_was_not_started() -> None:
    driver = cancelled(saga(step("a"), WAIT, NESTED), {}).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "a~undo"])


def test_the_items_of_a_nested_saga_ahead_are_those_that_have_left_traces() -> None:
    each = replace(NESTED, for_each="${{ [1, 2, 3] }}")
    driver = MachineDriver(saga(step("a"), WAIT, each), repeats=True)
    driver.feed(RunWasReset(driver.now, {"b#0": 1, "b#1": 1}, "before")).run(until=0.0).cancel().run()
    driver.decide("b#1", "done", evidence="it is undone").decide("b#0", "done", evidence="it is undone").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


NESTED_PIVOT = saga(step("a"), WAIT, replace(NESTED, kind="pivot"))


@pytest.mark.parametrize(("end", "state"), [("COMPENSATED", "COMPENSATED"), ("COMPLETED", "RUNNING")])
def test_the_end_of_a_nested_pivot_ahead_decides(end: str, state: str) -> None:
    driver = with_child_ahead(NESTED_PIVOT, {"b~earlier": (end, None)}).run()
    assert (driver.state, driver.undone) == (state, ["a"] if state == "COMPENSATED" else [])
    if state == "RUNNING":
        assert driver.signal("go").run().state == "COMPLETED"


@pytest.mark.parametrize("repeats", [False, True])
def test_a_nested_pivot_ahead_whose_end_nobody_knows_parks(repeats: bool) -> None:
    driver = with_child_ahead(NESTED_PIVOT, {"b~earlier": ("TERMINATED", None)}, repeats=repeats)
    assert (driver.state, driver.undone, "b~earlier" in driver.log) == ("PARKED", [], not repeats)
    driver.decide("b", "compensate", evidence="it is undone").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])


def test_steps_behind_one_that_a_guard_had_closed_before_are_looked_up() -> None:
    """The `skip` of an operator has closed it, and the earlier run has gone on."""
    driver = MachineDriver(LINE, answers={"c~seal": "done"}, repeats=True)
    driver.feed(RunWasReset(driver.now, {}, "before", in_guards={"b": 0})).run(until=0.0).cancel().run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "a"])


def test_a_step_that_its_condition_leaves_out_now_is_called_again_if_its_effect_is_open() -> None:
    look = step("look", kind="read")
    branch = step("b", if_="steps.look.result.ok == false")
    driver = MachineDriver(saga(step("a"), look, branch, WAIT), repeats=True)
    driver.feed(RunWasReset(driver.now, {}, "before", in_guards={"b": 1})).signal("go").run()
    assert (driver.state, driver.states()["b"]) == ("COMPLETED", "DONE")


def test_an_open_effect_of_a_step_that_was_left_out_before_the_reset_is_undone() -> None:
    """Another run of the saga has done it: the reset has gone back to a state in which it had been left out."""
    branch = step("b", if_="1 == 2")
    driver = MachineDriver(saga(step("a"), branch, step("c")), answers={"b~seal": "done"}, hold=["c"]).start()
    driver.feed(RunWasReset(driver.now, {}, "before", in_guards={"b": 1})).end("c").run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "b", "a"])
    assert "an earlier run of the saga has done b, which this one has left out" in driver.story["reason"]["message"]


LOOK, IF_ON, IF_OFF = (
    step("look", kind="read", on=None),
    step("b", if_="steps.look.result.on"),
    step("c", if_="!steps.look.result.on"),
)
ON, OFF = Outcome.done({"on": True}), Outcome.done({"on": False})


def asked_about_c(definition: Definition, answers: dict[str, object]) -> MachineDriver:
    """A run that parks at `c`, because the guard tells that the deleted run had done the other branch, `b`."""
    driver = MachineDriver(definition, answers=answers, repeats=True)
    driver.feed(RunWasReset(driver.now, {"b": 1}, "before", in_guards={"b": 1}, state_is_lost=True)).run()
    [parked] = driver.story["parked"]
    assert (parked["step"], "nobody knows whether" in parked["why"]) == ("c", True)
    return driver


def test_a_decision_about_a_doubtful_step_does_not_outlast_a_repeat_from_a_savepoint() -> None:
    definition = saga(step("a", savepoint=Savepoint(2)), LOOK, IF_ON, IF_OFF, step("d"))
    driver = asked_about_c(definition, {"look": [OFF, ON], "d": ["rejected", "done"]})
    driver.decide("c", "skip").run()
    assert (driver.state, driver.row("d")["generation"]) == ("COMPLETED", 2)
    assert (driver.states()["b"], driver.states()["c"]) == ("DONE", "SKIPPED")


@pytest.mark.parametrize("decision", [None, "skip", "retry"])
def test_a_doubtful_step_is_doubtful_in_the_next_run_unless_it_was_decided(decision: str | None) -> None:
    definition = saga(step("a"), LOOK, IF_ON, IF_OFF, WAIT)
    earlier = asked_about_c(definition, {"look": OFF})
    if decision is not None:
        earlier.decide("c", decision).run(until=0.0)
    left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
    driver = MachineDriver(definition, answers={"look": OFF}, repeats=True)
    event = RunWasReset(
        driver.now,
        left.generations,
        "before",
        left.records,
        left.children,
        decisions=left.decisions,
        in_guards={"b": 1} if decision != "retry" else {"b": 1, "c": 1},
        state_is_lost=False,
    )
    driver.feed(event).signal("go").run(until=0.0)
    states = {None: ("PARKED", "PARKED"), "skip": ("COMPLETED", "SKIPPED"), "retry": ("COMPLETED", "DONE")}
    assert (driver.state, driver.states()["c"]) == states[decision]
