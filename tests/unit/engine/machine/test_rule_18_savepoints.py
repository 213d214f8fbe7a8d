"""Rule 18: a savepoint, the runs of what follows it, and what goes past it."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition, Savepoint
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo


def line(attempts: int = 3, wait: float = 0.0, **more: Any) -> Definition:
    """a, the savepoint b, c, d."""
    return saga(step("a"), step("b", savepoint=Savepoint(attempts, wait)), step("c"), step("d"), **more)


def failing(times: int, word: Any = "rejected") -> list[Any]:
    return [word] * times + ["done"]


@pytest.mark.parametrize("word", ["rejected", ("failed", 3), "unknown"])
@pytest.mark.parametrize("restore", [False, True])
def test_a_later_failure_undoes_what_follows_and_runs_it_again(word: Any, restore: bool) -> None:
    driver = MachineDriver(line(), answers={"d": failing(1, word)}, restore=restore).run()
    assert (driver.state, driver.story["reason"]) == ("COMPLETED", None)
    assert driver.undone == ["c"]
    generations = {row["id"]: row["generation"] for row in driver.story["steps"]}
    assert generations == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert driver.call("d").key == "s1/d@2"


def test_a_rejected_guarded_step_is_sealed_before_its_next_generation() -> None:
    driver = MachineDriver(line(), answers={"d": failing(1)}).run()
    assert driver.log == ["a", "b", "c", "d", "d~seal", "c~undo", "c", "d"]


def test_a_lost_seal_undoes_what_had_happened_after_all() -> None:
    driver = MachineDriver(line(), answers={"d": failing(1), "d~seal": "done"}).run()
    assert driver.log == ["a", "b", "c", "d", "d~seal", "d~undo", "c~undo", "c", "d"]


@pytest.mark.parametrize("attempts", [2, 3, 5])
def test_the_attempts_count_all_runs_and_then_everything_is_undone(attempts: int) -> None:
    driver = MachineDriver(line(attempts), answers={"d": "rejected"}).run()
    assert (driver.state, driver.story["reason"]["step"]) == ("COMPENSATED", "d")
    assert [call.generation for call in driver.calls if call.id == "d"] == list(range(1, attempts + 1))
    assert driver.undone == ["c"] * attempts + ["b", "a"]


def test_the_savepoint_and_what_precedes_it_run_once() -> None:
    driver = MachineDriver(line(), answers={"d": failing(2)}).run()
    assert [driver.log.count(id) for id in "abcd"] == [1, 1, 3, 3]


@pytest.mark.parametrize("failing_step", ["a", "b"])
def test_a_failure_up_to_the_savepoint_undoes_everything(failing_step: str) -> None:
    driver = MachineDriver(line(), answers={failing_step: "rejected"}).run()
    assert (driver.state, driver.log.count("c")) == ("COMPENSATED", 0)


def test_the_wait_is_between_the_runs_and_survives_a_restore() -> None:
    driver = MachineDriver(line(wait=60.0), answers={"d": failing(1)}, restore=True).start()
    assert (driver.state, driver.timers) == ("COMPENSATING", {"savepoint": driver.now + 60.0})
    driver.fire("savepoint")
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("cause", ["cancel", "deadline"])
@pytest.mark.parametrize("moment", ["in flight", "undoing", "waiting"])
def test_cancel_and_deadline_go_past_the_savepoint(cause: str, moment: str) -> None:
    hold = {"in flight": ["e"], "undoing": ["c~undo"], "waiting": []}[moment]
    needs = ("c",)
    definition = saga(
        step("a"),
        step("b", savepoint=Savepoint(3, 60.0)),
        step("c"),
        step("d", needs=needs),
        step("e", needs=needs),
        line=True,
        deadline=1000.0,
    )
    driver = MachineDriver(definition, answers={"d": "rejected"}, hold=hold).start()
    assert driver.state == "COMPENSATING"
    if cause == "cancel":
        assert driver.machine.cancel_response() == "accepted"
        driver.cancel()
        assert driver.machine.cancel_response() == ("finished" if moment == "waiting" else "already")
    else:
        driver.fire("deadline")
    for id in hold:
        driver.end(id)
    reason = {"cancel": "cancelled", "deadline": "deadline"}[cause]
    assert (driver.state, driver.story["reason"]["kind"]) == ("COMPENSATED", reason)
    assert driver.undone[-2:] == ["b", "a"]
    assert not driver.timers


def test_a_parked_compensation_goes_past_the_savepoint() -> None:
    driver = MachineDriver(line(), answers={"d": "rejected", "c~undo": "rejected"}).run()
    assert (driver.state, driver.undone) == ("PARKED", ["c"])
    driver.answers["c~undo"] = "done"
    driver.decide("c", "retry")
    assert (driver.state, driver.undone) == ("COMPENSATED", ["c", "c", "b", "a"])


@pytest.mark.parametrize("word", ["definition", "late"])
def test_a_failure_that_would_only_occur_again_undoes_everything(word: str) -> None:
    driver = MachineDriver(line(), answers={"d": word}).run()
    assert (driver.state, driver.log.count("d")) == ("COMPENSATED", 1)


def test_parallel_steps_after_the_savepoint_settle_before_anything_is_undone() -> None:
    definition = saga(
        step("a", savepoint=Savepoint()), step("b", needs=("a",)), step("c", needs=("a",)), step("d", needs=("b", "c"))
    )
    driver = MachineDriver(definition, answers={"b": failing(1)}, hold=["c"]).start()
    assert driver.cancelled == ["c"]
    assert driver.undone == []
    driver.end("c", "done")
    assert (driver.state, driver.undone) == ("COMPLETED", ["c"])


def test_the_nearest_savepoint_counts_and_the_one_before_it_next() -> None:
    definition = saga(step("a", savepoint=Savepoint(2)), step("b"), step("c", savepoint=Savepoint(2)), step("d"))
    driver = MachineDriver(definition, answers={"d": "rejected"}).run()
    assert driver.state == "COMPENSATED"
    assert [driver.log.count(id) for id in "abcd"] == [1, 2, 2, 4], "a new run of c starts its count again"


def test_items_after_a_savepoint_run_again_with_a_new_list() -> None:
    definition = saga(
        step("a", savepoint=Savepoint(2)),
        step("b"),
        step("c", for_each="${{ steps.b.result.items }}", max_parallel=2),
        step("d"),
    )
    many = [{"items": [1, 2, 3]}, {"items": [1]}]
    answers = {"b": [Outcome.done(many[0]), Outcome.done(many[1])], "d": failing(1)}
    driver = MachineDriver(definition, answers=answers).run()
    assert (driver.state, driver.undone) == ("COMPLETED", ["c#2", "c#1", "c#0", "b"])
    assert [row["id"] for row in driver.story["steps"]] == ["a", "b", "c#0", "d"]
    assert driver.row("c#0")["generation"] == 2


def test_a_nested_saga_after_a_savepoint_gets_an_id_of_its_own() -> None:
    nested = step("c", do=op("saga", {"name": "child", "input": {}}), compensate=None)
    definition = saga(step("a", savepoint=Savepoint(2)), nested, step("d"))
    driver = MachineDriver(definition, answers={"d": failing(1)}).run()
    assert driver.state == "COMPLETED"
    assert driver.story["children"][0]["id"] == "s1/c@2"


def test_a_failed_pivot_goes_back_to_the_savepoint_and_is_decided_anew() -> None:
    definition = saga(
        step("a", savepoint=Savepoint(2)),
        step("b"),
        step("c", kind="pivot", compensate=None),
        step("d", kind="retriable"),
    )
    driver = MachineDriver(definition, answers={"c": failing(1)}).run()
    assert (driver.state, driver.undone) == ("COMPLETED", ["b"])
    assert driver.call("c").key == "s1/c@2"


def test_the_compensation_of_a_later_run_is_that_of_its_own_generation() -> None:
    definition = saga(step("a", savepoint=Savepoint(2)), step("b", compensate=undo("un.b")), step("c"))
    driver = MachineDriver(definition, answers={"c": "rejected"}).run()
    assert [call.key for call in driver.calls if call.op == "undo"] == ["s1/b/undo", "s1/b@2/undo", "s1/a/undo"]


def test_the_view_names_the_savepoint_and_its_runs() -> None:
    driver = MachineDriver(line(), answers={"d": failing(1)}, hold=["c~undo"]).start()
    assert driver.story["savepoints"] == [{"step": "b", "runs": 1, "attempts": 3, "undoing": ["c", "d"]}]
    driver.end("c~undo")
    assert driver.story["savepoints"] == [{"step": "b", "runs": 2, "attempts": 3}]
