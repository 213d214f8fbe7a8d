"""Rules 11 to 14: continue, for_each, the commit point with its confirms, and nested sagas."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

# --- rule 11 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "log", "state"),
    [
        ({"b": "rejected"}, ["a", "b", "c"], "REJECTED"),
        ({"b": ("failed", 1)}, ["a", "b", "c"], "FAILED"),
        ({"b": "unknown"}, ["a", "b", "b~seal", "c"], "NOTHING_TO_UNDO"),
        ({"b": "unknown", "b~seal": "done"}, ["a", "b", "b~seal", "c"], "DONE"),
    ],
)
def test_rule_11_continue_means_as_if_the_step_had_not_run(answers: dict[str, Any], log: list[str], state: str) -> None:
    definition = saga(step("a"), step("b", on_failure="continue"), step("c"), output="${{ steps.b.result }}")
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.log == log
    assert driver.row("b")["state"] == state
    assert driver.state == "COMPLETED"
    assert driver.story["output"] == ({"ok": True} if state == "DONE" else None)
    assert driver.story["not_done"] == []


def test_rule_11_an_unguarded_unknown_is_undone_alone() -> None:
    driver = MachineDriver(
        saga(step("a"), step("b", on=None, on_failure="continue"), step("c")), answers={"b": "unknown"}
    ).run()
    assert driver.log == ["a", "b", "b~undo", "c"]
    assert driver.row("b")["state"] == "COMPENSATED"
    assert driver.state == "COMPLETED"


def test_rule_11_a_failing_undo_parks() -> None:
    definition = saga(step("a"), step("b", on=None, on_failure="continue"), step("c"))
    driver = MachineDriver(definition, answers={"b": "unknown", "b~undo": ["rejected", "done"]}).run()
    assert driver.state == "PARKED"
    assert driver.story["phase"] == "forward"
    driver.decide("b", "retry")
    assert driver.state == "COMPLETED"


def test_rule_11_a_parked_lone_undo_is_part_of_going_backward() -> None:
    definition = saga(step("a"), step("b", on=None, on_failure="continue"), step("c"))
    driver = MachineDriver(definition, answers={"b": "unknown", "b~undo": ["rejected", "done"]}).run().cancel()
    assert driver.state == "PARKED"
    assert driver.undone == ["b"]
    driver.decide("b", "retry")
    assert driver.undone == ["b", "b", "a"]
    assert driver.state == "COMPENSATED"


def test_rule_11_a_continued_step_is_not_confirmed() -> None:
    definition = saga(
        step("a", on_failure="continue", confirm=op("ok", on="shop")), step("b", confirm=op("ok", on="shop"))
    )
    driver = MachineDriver(definition, answers={"a": "rejected"}).run()
    assert driver.log == ["a", "b", "b~confirm"]


def test_rule_11_past_the_commit_point_it_is_best_effort_and_listed() -> None:
    definition = saga(
        step("p", kind="pivot"), step("n", kind="retriable", on_failure="continue"), step("m", kind="retriable")
    )
    driver = MachineDriver(definition, answers={"n": "rejected"}).run()
    assert driver.state == "COMPLETED"
    assert driver.story["not_done"] == ["n"]
    assert driver.log == ["p", "n", "m"]


# --- rule 12 ---------------------------------------------------------------------------------------------------------


def test_rule_12_the_list_is_evaluated_once_and_items_run_in_order() -> None:
    definition = saga(
        step("a", for_each="${{ input.n }}", with_={"x": "${{ item * 2 }}", "at": "${{ index }}"}),
        output="${{ steps.a.results }}",
    )
    driver = MachineDriver(definition, {"n": [5, 6]}, {"a#0": Outcome.done("r0"), "a#1": Outcome.done("r1")}).run()
    assert [(call.id, call.arguments) for call in driver.calls] == [
        ("a#0", {"x": 10, "at": 0}),
        ("a#1", {"x": 12, "at": 1}),
    ]
    assert driver.story["output"] == ["r0", "r1"]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_rule_12_at_most_max_parallel_at_a_time(width: int) -> None:
    definition = saga(step("a", for_each="${{ [1, 2, 3, 4] }}", max_parallel=width))
    hold = [f"a#{n}" for n in range(4)]
    driver = MachineDriver(definition, hold=hold).start()
    assert len(driver.flights) == min(width, 4)


def test_rule_12_empty_is_done_with_no_results() -> None:
    driver = MachineDriver(saga(step("a", for_each="${{ [] }}"), output="${{ steps.a.results }}")).run()
    assert driver.states() == {"a": "DONE"}
    assert driver.story["output"] == []


def test_rule_12_before_it_is_evaluated_one_entry_with_the_steps_id_is_shown() -> None:
    driver = MachineDriver(saga(step("a"), step("b", for_each="${{ [1, 2] }}")), hold=["a"]).start()
    assert driver.states() == {"a": "RUNNING", "b": "PENDING"}


def test_rule_12_the_first_failed_item_ends_the_step() -> None:
    definition = saga(step("a", for_each="${{ [1, 2, 3, 4, 5] }}", max_parallel=2))
    driver = MachineDriver(definition, answers={"a#1": "rejected"}, hold=["a#0"]).start()
    assert driver.log == ["a#0", "a#1"]
    driver.end("a#0")
    assert driver.undone == ["a#0"]
    assert driver.states() == {
        "a#0": "COMPENSATED",
        "a#1": "REJECTED",
        "a#2": "PENDING",
        "a#3": "PENDING",
        "a#4": "PENDING",
    }
    assert driver.story["reason"]["step"] == "a#1"


def test_rule_12_a_continued_item_leaves_null_at_its_index() -> None:
    definition = saga(step("a", for_each="${{ [1, 2, 3] }}", on_failure="continue"), output="${{ steps.a.results }}")
    driver = MachineDriver(definition, answers={"a#1": "rejected"}).run()
    assert driver.story["output"] == [{"ok": True}, None, {"ok": True}]


def test_rule_12_a_compensation_sees_its_own_item_and_result() -> None:
    with_ = {"item": "${{ item }}", "mine": "${{ steps.a.result }}"}
    definition = saga(step("a", for_each="${{ ['x', 'y'] }}", compensate=undo(op("u", with_, on="shop"))), step("b"))
    answers = {"b": "rejected", "a#0": Outcome.done(0), "a#1": Outcome.done(1)}
    driver = MachineDriver(definition, answers=answers).run()
    assert [call.arguments for call in driver.calls if call.op == "undo"] == [
        {"item": "y", "mine": 1},
        {"item": "x", "mine": 0},
    ]


def test_rule_12_confirms_run_per_item() -> None:
    definition = saga(step("a", for_each="${{ [1, 2, 3] }}", max_parallel=2, confirm=op("ok", on="shop")))
    hold = ["a#0~confirm", "a#1~confirm"]
    driver = MachineDriver(definition, hold=hold).run()
    assert sorted(driver.flights) == hold
    for id in hold:
        driver.end(id)
    assert driver.state == "COMPLETED"
    assert driver.log[-1] == "a#2~confirm"


# --- rule 13 ---------------------------------------------------------------------------------------------------------


def test_rule_13_without_a_pivot_the_commit_point_is_the_end_of_the_last_step() -> None:
    driver = MachineDriver(saga(step("a", confirm=op("ok", on="shop")), step("b")), hold=["a~confirm"]).run()
    assert driver.log == ["a", "b", "a~confirm"]
    assert driver.machine.phase == "committed"
    assert driver.state == "COMMITTED"
    assert driver.machine.cancel_response() == "past the point of no return"


def test_rule_13_confirms_run_in_topological_order_right_after_the_pivot_before_later_steps() -> None:
    ok = op("ok", on="shop")
    definition = saga(
        step("a", confirm=ok),
        step("l", needs=("a",), confirm=ok),
        step("r", needs=("a",), confirm=ok),
        step("p", kind="pivot", needs=("l", "r")),
        step("n", kind="retriable", needs=("p",)),
        line=False,
    )
    hold = ["a~confirm", "l~confirm", "r~confirm"]
    driver = MachineDriver(definition, hold=hold).run()
    assert sorted(driver.flights) == ["a~confirm"]
    driver.end("a~confirm")
    assert sorted(driver.flights) == ["l~confirm", "r~confirm"]
    driver.end("l~confirm")
    assert "n" not in driver.log
    driver.end("r~confirm")
    assert driver.log[-1] == "n"
    assert driver.state == "COMPLETED"
    assert driver.states()["a"] == "CONFIRMED"


def test_rule_13_a_parked_confirm_holds_back_its_descendants_and_all_later_steps() -> None:
    ok = op("ok", on="shop")
    definition = saga(
        step("a", confirm=ok), step("b", confirm=ok), step("p", kind="pivot"), step("n", kind="retriable")
    )
    driver = MachineDriver(definition, answers={"a~confirm": ["rejected", "done"]}).run()
    assert driver.log == ["a", "b", "p", "a~confirm"]
    assert driver.state == "PARKED"
    driver.decide("a", "retry")
    assert driver.log[4:] == ["a~confirm", "b~confirm", "n"]


def test_rule_13_a_step_after_the_pivot_is_confirmed_right_after_itself() -> None:
    definition = saga(
        step("p", kind="pivot"), step("n", kind="retriable", confirm=op("ok", on="shop")), step("m", kind="retriable")
    )
    assert MachineDriver(definition).run().log == ["p", "n", "n~confirm", "m"]


def test_rule_13_skipped_steps_are_not_confirmed() -> None:
    definition = saga(step("a", if_="${{ false }}", confirm=op("ok", on="shop")), step("b"))
    assert MachineDriver(definition).run().log == ["b"]


@pytest.mark.parametrize(
    ("step_on", "confirm_on", "log", "modes"),
    [
        ("shop", "shop", ["a~confirm"], ["decide"]),
        ("shop", "bank", ["a~confirm-mark", "a~confirm"], ["mark", "own"]),
        ("shop", None, ["a~confirm-mark", "a~confirm"], ["mark", None]),
        (None, "bank", ["a~confirm"], ["own"]),
    ],
)
def test_a_confirm_is_decided_in_the_database_of_its_step(
    step_on: str | None, confirm_on: str | None, log: list[str], modes: list[str | None]
) -> None:
    driver = MachineDriver(saga(step("a", on=step_on, confirm=op("ok", on=confirm_on)))).run()
    calls = [call for call in driver.calls if call.op == "confirm"]
    assert [call.id for call in calls] == log
    assert [call.guard.mode if call.guard else None for call in calls] == modes
    assert driver.state == "COMPLETED"


def test_the_short_form_takes_the_frozen_arguments_of_the_forward_call() -> None:
    definition = saga(step("a", with_={"x": "${{ input.x }}"}, confirm=op("ok", on="shop")), step("b"))
    driver = MachineDriver(definition, {"x": 4}).run()
    assert driver.call("a~confirm").arguments == {"x": 4}
    driver = MachineDriver(definition, {"x": 4}, {"b": "rejected"}).run()
    assert driver.call("a~undo").arguments == {"x": 4}


# --- rule 14 ---------------------------------------------------------------------------------------------------------

PARENT = saga(
    step("a"),
    step("c", uses="saga", on=None, compensate=None, with_={"name": "child", "input": {"x": 1}}),
    step("z"),
    output="${{ steps.c.result }}",
)


def _story(**more: Any) -> dict[str, Any]:
    return {"output": None, "reason": None, "residue": [], "committed_at": None, **more}


def test_rule_14_a_completed_child_gives_its_output() -> None:
    driver = MachineDriver(PARENT, answers={"c": ("COMPLETED", _story(output=7))}).run()
    assert driver.state == "COMPLETED"
    assert driver.story["output"] == 7


def test_rule_14_the_child_id_is_the_steps_key_and_it_is_shown() -> None:
    driver = MachineDriver(PARENT, hold=["c"]).start()
    child = driver.flights["c"]
    assert (child.saga_id, child.saga, child.input) == ("s1/c", "child", {"x": 1})  # pyright: ignore
    assert driver.story["children"] == [{"id": "s1/c", "step": "c", "saga": "child", "state": "RUNNING"}]
    assert driver.machine.child_running


@pytest.mark.parametrize(
    ("kind", "outcome"), [("rejected", "rejected"), ("unknown", "failed"), ("cancelled", "failed")]
)
def test_rule_14_a_compensated_child_is_rejected_if_its_reason_was_else_failed(kind: str, outcome: str) -> None:
    reason = {"kind": kind, "type": "T", "message": "m", "details": {}}
    driver = MachineDriver(PARENT, answers={"c": ("COMPENSATED", _story(reason=reason))}).run()
    assert driver.row("c")["outcome"] == outcome
    assert driver.undone == ["a"]
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize(
    ("committed_at", "outcome", "state"), [("2026", "done", "RESIDUE"), (None, "failed", "RESIDUE")]
)
def test_rule_14_a_childs_residue_is_copied(committed_at: str | None, outcome: str, state: str) -> None:
    rows = [{"step": "x", "kind": "effect_stays", "system": "s", "key": "k", "command": "c"}]
    answers = {"c": ("RESIDUE", _story(committed_at=committed_at, residue=rows))}
    driver = MachineDriver(PARENT, answers=answers).run()
    assert driver.row("c")["outcome"] == outcome
    assert driver.story["residue"] == [{**row, "saga": "s1/c"} for row in rows]
    assert driver.state == state


@pytest.mark.parametrize("hold", [True, False])
def test_rule_14_a_vanished_child_parks(hold: bool) -> None:
    driver = MachineDriver(PARENT, hold=["c"] if hold else [], answers={"c": ("TERMINATED", None)}).start()
    if hold:
        driver.saga_ends("c", "TERMINATED")
    assert driver.state == "PARKED"
    assert "may have taken effect" in (driver.refusal("c", "retry", arguments={"name": "child"}) or "")
    driver.decide("c", "done", result=1)
    assert driver.state == "COMPLETED"


def test_rule_14_a_refused_child_is_failed_because_nothing_ran() -> None:
    driver = MachineDriver(PARENT, answers={"c": ("REFUSED", None)}).run()
    assert driver.row("c")["outcome"] == "failed"
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize(("ends", "undone"), [("COMPENSATED", ["a"]), ("COMPLETED", ["c~undo", "a~undo"])])
def test_rule_14_going_backward_the_child_is_cancelled_and_awaited_a_committed_one_undone(
    ends: str, undone: list[str]
) -> None:
    driver = MachineDriver(PARENT, hold=["c"]).start().cancel()
    assert driver.cancelled == ["c"]
    assert driver.undone == []
    driver.saga_ends("c", ends, _story(output=7, reason={"kind": "parent"}))
    assert driver.log[-len(undone) :] == (undone if ends == "COMPLETED" else ["a~undo"])
    assert driver.state == "COMPENSATED"


def test_rule_14_a_parent_level_compensate_replaces_the_undo_of_the_child() -> None:
    definition = saga(
        step("c", uses="saga", on=None, compensate=undo("uc", on=None), with_={"name": "child"}), step("z")
    )
    driver = MachineDriver(definition, answers={"z": "rejected"}).run()
    assert driver.log == ["c", "z", "c~undo"]
    assert driver.call("c~undo").action == "uc"


@pytest.mark.parametrize(
    ("ends", "state"),
    [("COMPENSATED", "COMPENSATED"), ("RESIDUE", "RESIDUE"), ("REFUSED", "PARKED"), ("TERMINATED", "PARKED")],
)
def test_rule_14_how_the_undo_of_a_child_may_end(ends: str, state: str) -> None:
    rows = [{"step": "x", "kind": "effect_stays", "system": "s", "key": "k", "command": "c"}]
    story = _story(residue=rows if ends == "RESIDUE" else [])
    driver = MachineDriver(PARENT, answers={"z": "rejected", "c~undo": (ends, story)}).run()
    assert driver.state == state


# --- built-in actions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("that", "state"), [("${{ input.x > 1 }}", "COMPLETED"), ("${{ input.x > 9 }}", "COMPENSATED")]
)
def test_require_is_a_pure_condition(that: str, state: str) -> None:
    definition = saga(step("q", kind="read", uses="require", with_={"that": that, "message": "too few"}))
    driver = MachineDriver(definition, {"x": 5}).run()
    assert driver.state == state
    if state == "COMPENSATED":
        assert driver.story["reason"]["message"] == "too few"


WAITING = saga(
    step("w", kind="read", uses="wait", with_={"signal": "ok", "timeout": "1h"}), output="${{ steps.w.result }}"
)


def test_wait_is_answered_by_a_signal() -> None:
    driver = MachineDriver(WAITING).start().signal("other").signal("ok", {"n": 1}).signal("ok", {"n": 2})
    assert driver.state == "COMPLETED"
    assert driver.story["output"]["data"] == {"n": 1}
    assert driver.story["output"]["by"] == "kim"
    assert driver.timers == {}


def test_wait_keeps_early_signals_and_the_first_counts() -> None:
    definition = saga(
        step("a"), step("w", kind="read", uses="wait", with_={"signal": "ok"}), output="${{ steps.w.result.data }}"
    )
    driver = MachineDriver(definition, hold=["a"]).start().signal("ok", 1).signal("ok", 2).end("a")
    assert driver.story["output"] == 1


def test_a_signal_may_refuse() -> None:
    driver = MachineDriver(WAITING).start().signal("ok", reject="too expensive")
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["message"] == "too expensive"


@pytest.mark.parametrize(("then", "state"), [("reject", "COMPENSATED"), ("continue", "COMPLETED"), ("park", "PARKED")])
def test_wait_on_timeout(then: str, state: str) -> None:
    definition = saga(step("w", kind="read", uses="wait", with_={"signal": "ok", "timeout": "1h", "on_timeout": then}))
    driver = MachineDriver(definition).run()
    assert driver.state == state


def test_wait_until_a_timestamp() -> None:
    definition = saga(step("w", kind="read", uses="wait", with_={"until": "2023-11-14T22:14:20Z"}))
    driver = MachineDriver(definition).run()
    assert driver.now == 1_700_000_060
    assert driver.state == "COMPLETED"


def test_http_keeps_its_result_expression_for_the_worker() -> None:
    definition = saga(
        step("a", uses="http", on=None, with_={"path": "/x/${{ input.x }}", "result": "${{ response.body }}"})
    )
    driver = MachineDriver(definition, {"x": 1}).run()
    assert driver.call("a").arguments == {"path": "/x/1", "result": "${{ response.body }}"}


def test_warn_after_only_raises_overdue() -> None:
    driver = MachineDriver(saga(step("a"), warn_after=10.0), hold=["a"]).start().wait(11)
    assert driver.story["overdue"]
    driver.end("a")
    assert driver.state == "COMPLETED"


def test_compensations_may_name_the_reason() -> None:
    with_ = {"why": "${{ saga.reason.message }}"}
    driver = MachineDriver(
        saga(step("a", compensate=undo(op("u", with_, on="shop"))), step("b")), answers={"b": "rejected"}
    ).run()
    assert driver.call("a~undo").arguments == {"why": "no"}


def test_rule_12_an_empty_step_is_neither_confirmed_nor_undone() -> None:
    empty = step("a", for_each="${{ [] }}", confirm=op("ok", on="shop"))
    assert MachineDriver(saga(empty)).run().log == []
    assert MachineDriver(saga(empty, step("b")), answers={"b": "rejected"}).run().log == ["b"]
