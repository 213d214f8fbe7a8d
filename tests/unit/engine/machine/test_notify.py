"""Notifications: one command for each moment and each entry of `notify`, and never a change of the saga itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sagas.definition.model import Milestone, Notification
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.machine import Machine
from sagas.protocol.messages import Finish, Notify, UndoRequested
from tests.unit.engine.machine.driver import World, op, saga, step

MOMENTS: tuple[Milestone, ...] = ("completed", "compensated", "parked", "residue", "overdue")


def tell(*when: Milestone, with_: Any = None, **more: Any) -> Notification:
    return Notification(when or MOMENTS, op("http", {"json": "${{ event }}"} if with_ is None else with_), **more)


def moments(world: World) -> list[str]:
    return [one.id for one in world.notified]


def event(command: Notify) -> dict[str, Any]:
    assert command.call is not None
    return command.call.arguments["json"]


def test_a_completed_saga_tells_its_output() -> None:
    definition = saga(step("a"), output={"n": "${{ steps.a.result.ok }}"}, notify=(tell("completed"), tell("parked")))
    world = World(definition).run()
    [told] = world.notified
    assert (told.id, told.milestone, told.workflow_id) == ("notify-0-completed", "completed", "s1~notify-0-completed")
    assert told.call is not None
    assert (told.call.key, told.call.retry.max_attempts, told.call.op) == ("s1/notify-0-completed", 1, "do")
    assert event(told) == {
        "id": "s1/notify-0-completed",
        "type": "saga.completed",
        "timestamp": world.story["ended_at"],
        "data": {
            "id": "s1",
            "saga": "test",
            "state": "COMPLETED",
            "reason": None,
            "output": {"n": True},
            "started_at": world.story["started_at"],
            "ended_at": world.story["ended_at"],
        },
    }


def test_a_compensated_saga_tells_its_reason() -> None:
    world = World(saga(step("a"), step("b"), notify=(tell(),)), answers={"b": "rejected"}).run()
    [told] = world.notified
    assert told.milestone == "compensated"
    assert event(told)["data"]["reason"]["step"] == "b"


def test_a_saga_with_a_residue_tells_what_stays() -> None:
    world = World(
        saga(step("a"), step("b"), notify=(tell("residue", "compensated"),)),
        answers={"b": "rejected", "a~undo": "rejected"},
    )
    world.run().decide("a", "skip")
    [told] = world.notified
    assert event(told)["data"]["residue"][0]["kind"] == "effect_stays"


def test_each_time_it_parks_is_a_moment_of_its_own() -> None:
    world = World(saga(step("a", on_failure="park"), notify=(tell("parked"),)), answers={"a": "rejected"}).run()
    world.decide("a", "retry")
    assert moments(world) == ["notify-0-parked", "notify-0-parked-2"]
    assert event(world.notified[0])["data"]["parked"] == [{"step": "a", "op": "do", "why": "Rejected: no"}]
    assert event(world.notified[1])["id"] == "s1/notify-0-parked-2"


def test_overdue_comes_once() -> None:
    definition = saga(step("a"), warn_after=10.0, notify=(tell("overdue"),))
    world = World(definition, hold=["a"]).start().wait(100)
    assert moments(world) == ["notify-0-overdue"]
    assert event(world.notified[0])["data"]["state"] == "RUNNING"


def test_everybody_is_told_before_the_end() -> None:
    definition = saga(step("a"), notify=(tell("completed"), tell("completed")))
    world = World(definition).start()
    assert moments(world) == ["notify-0-completed", "notify-1-completed"]


def test_the_end_is_the_last_command() -> None:
    definition = saga(step("a"), notify=(tell("completed"),))
    world = World(definition, hold=["a"]).start()
    answer = world.machine.next(world._ended(world.call("a"), "done"))  # pyright: ignore[reportPrivateUsage]
    assert [type(one) for one in answer] == [Notify, Finish]


def test_steps_that_never_ran_have_no_result_and_those_undone_say_so() -> None:
    with_ = {
        "seen": "${{ [steps.a.state, steps.b.state, steps.c.state] }}",
        "c": "${{ steps.c.result }}",
        "a": "${{ steps.a.result.ok }}",
        "why": "${{ saga.reason.kind }}",
        "state": "${{ saga.state }}",
    }
    definition = saga(step("a"), step("b"), step("c"), notify=(tell("compensated", with_=with_),))
    world = World(definition, answers={"b": "rejected"}).run()
    assert world.notified[0].call is not None
    assert world.notified[0].call.arguments == {
        "seen": ["COMPENSATED", "REJECTED", "PENDING"],
        "c": None,
        "a": True,
        "why": "rejected",
        "state": "COMPENSATED",
    }


def test_an_expression_that_fails_is_told_and_the_saga_is_as_well_as_before() -> None:
    definition = saga(
        step("a"), notify=(tell("completed", with_={"json": "${{ input.nothing.there }}"}), tell("completed"))
    )
    world = World(definition).run()
    assert world.state == "COMPLETED"
    bad, good = world.notified
    assert bad.call is None
    assert bad.problem is not None
    assert bad.problem.startswith("notify.0: ")
    assert good.call is not None
    assert [row["id"] for row in world.story["notifications"]] == ["notify-0-completed", "notify-1-completed"]


def test_another_generation_has_other_keys_and_another_run() -> None:
    world = World(saga(step("a"), notify=(tell("completed"),)), generation=2).run()
    [told] = world.notified
    assert told.call is not None
    assert (told.call.key, told.workflow_id) == ("s1/notify-0-completed@2", "s1~notify-0-completed@2")


def test_a_guarded_action_is_guarded_here_too() -> None:
    notification = Notification(("completed",), op("tell", {}, on="shop", task_queue="q"), intervals=(1.0,))
    [told] = World(saga(step("a"), notify=(notification,))).run().notified
    assert told.call is not None
    assert told.call.guard is not None
    assert (told.call.guard.connection, told.call.task_queue, told.intervals) == ("shop", "q", (1.0,))


def test_an_undo_remembers_who_was_told_before() -> None:
    world = World(saga(step("a"), notify=(tell(),))).run()
    machine = Machine.restore(json.loads(json.dumps(world.machine.snapshot())))
    world.machine = machine
    world.feed(UndoRequested(world.now, "returned", "kim"))
    assert moments(world) == ["notify-0-completed", "notify-0-compensated"]
    assert [row["when"] for row in machine.view(0.0)["notifications"]] == ["completed", "compensated"]


@pytest.mark.parametrize("notify", [(), (tell("parked", intervals=(0.0, 2.0)), tell())])
def test_notifications_travel_with_the_run(notify: tuple[Notification, ...]) -> None:
    definition = saga(step("a"), notify=notify)
    assert from_snapshot(json.loads(json.dumps(to_snapshot(definition)))) == definition
    assert ("notify" in to_snapshot(definition)) == bool(notify)
