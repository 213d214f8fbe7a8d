"""Notifications: one command for each milestone and each entry of `notify`, and never a change of the saga itself."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Milestone, Notification
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.machine import Machine
from sagas.protocol.messages import Finish, Notify, UndoRequested
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step

MOMENTS: tuple[Milestone, ...] = ("completed", "compensated", "parked", "residue", "overdue")


def tell(*when: Milestone, with_: Any = None, **more: Any) -> Notification:
    return Notification(when or MOMENTS, op("http", {"json": "${{ event }}"} if with_ is None else with_), **more)


def moments(driver: MachineDriver) -> list[str]:
    return [row.id for row in driver.notified]


def event(command: Notify) -> dict[str, Any]:
    assert command.call is not None
    return command.call.arguments["json"]


def test_a_completed_saga_notifies_its_output() -> None:
    definition = saga(step("a"), output={"n": "${{ steps.a.result.ok }}"}, notify=(tell("completed"), tell("parked")))
    driver = MachineDriver(definition).run()
    [reported] = driver.notified
    assert (reported.id, reported.milestone, reported.workflow_id) == (
        "notify-0-completed",
        "completed",
        "s1~notify-0-completed",
    )
    assert reported.call is not None
    assert (reported.call.key, reported.call.retry.max_attempts, reported.call.op) == ("s1/notify-0-completed", 1, "do")
    assert event(reported) == {
        "id": "s1/notify-0-completed",
        "type": "saga.completed",
        "timestamp": driver.story["ended_at"],
        "data": {
            "id": "s1",
            "saga": "test",
            "state": "COMPLETED",
            "reason": None,
            "output": {"n": True},
            "started_at": driver.story["started_at"],
            "ended_at": driver.story["ended_at"],
        },
    }


def test_a_compensated_saga_notifies_its_reason() -> None:
    driver = MachineDriver(saga(step("a"), step("b"), notify=(tell(),)), answers={"b": "rejected"}).run()
    [reported] = driver.notified
    assert reported.milestone == "compensated"
    assert event(reported)["data"]["reason"]["step"] == "b"


def test_a_saga_with_residue_notifies_the_residue() -> None:
    driver = MachineDriver(
        saga(step("a"), step("b"), notify=(tell("residue", "compensated"),)),
        answers={"b": "rejected", "a~undo": "rejected"},
    )
    driver.run().decide("a", "skip")
    [reported] = driver.notified
    assert event(reported)["data"]["residue"][0]["kind"] == "effect_stays"


def test_each_parking_is_a_separate_notification() -> None:
    driver = MachineDriver(
        saga(step("a", on_failure="park"), notify=(tell("parked"),)), answers={"a": "rejected"}
    ).run()
    driver.decide("a", "retry")
    assert moments(driver) == ["notify-0-parked", "notify-0-parked-2"]
    assert event(driver.notified[0])["data"]["parked"] == [{"step": "a", "op": "do", "why": "Rejected: no"}]
    assert event(driver.notified[1])["id"] == "s1/notify-0-parked-2"


def test_overdue_is_notified_once() -> None:
    definition = saga(step("a"), warn_after=10.0, notify=(tell("overdue"),))
    driver = MachineDriver(definition, hold=["a"]).start().wait(100)
    assert moments(driver) == ["notify-0-overdue"]
    assert event(driver.notified[0])["data"]["state"] == "RUNNING"


def test_notifications_precede_the_end() -> None:
    definition = saga(step("a"), notify=(tell("completed"), tell("completed")))
    driver = MachineDriver(definition).start()
    assert moments(driver) == ["notify-0-completed", "notify-1-completed"]


def test_the_end_is_the_last_command() -> None:
    definition = saga(step("a"), notify=(tell("completed"),))
    driver = MachineDriver(definition, hold=["a"]).start()
    answer = driver.machine.next(driver._ended(driver.call("a"), "done"))  # pyright: ignore[reportPrivateUsage]
    assert [type(command) for command in answer] == [Notify, Finish]


def test_steps_not_run_have_no_result_and_undone_steps_are_marked() -> None:
    with_ = {
        "seen": "${{ [steps.a.state, steps.b.state, steps.c.state] }}",
        "c": "${{ steps.c.result }}",
        "a": "${{ steps.a.result.ok }}",
        "why": "${{ saga.reason.kind }}",
        "state": "${{ saga.state }}",
    }
    definition = saga(step("a"), step("b"), step("c"), notify=(tell("compensated", with_=with_),))
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    assert driver.notified[0].call is not None
    assert driver.notified[0].call.arguments == {
        "seen": ["COMPENSATED", "REJECTED", "PENDING"],
        "c": None,
        "a": True,
        "why": "rejected",
        "state": "COMPENSATED",
    }


def test_a_failing_notification_expression_is_reported_without_effect_on_the_saga() -> None:
    definition = saga(
        step("a"), notify=(tell("completed", with_={"json": "${{ input.nothing.there }}"}), tell("completed"))
    )
    driver = MachineDriver(definition).run()
    assert driver.state == "COMPLETED"
    bad, good = driver.notified
    assert bad.call is None
    assert bad.problem is not None
    assert bad.problem.startswith("notify.0.json: ")
    assert good.call is not None
    assert [row["id"] for row in driver.story["notifications"]] == ["notify-0-completed", "notify-1-completed"]


def test_another_generation_has_other_keys_and_another_run() -> None:
    driver = MachineDriver(saga(step("a"), notify=(tell("completed"),)), generation=2).run()
    [reported] = driver.notified
    assert reported.call is not None
    assert (reported.call.key, reported.workflow_id) == ("s1/notify-0-completed@2", "s1~notify-0-completed@2")


def test_a_guarded_notification_action_is_guarded() -> None:
    notification = Notification(("completed",), op("tell", {}, on="shop", task_queue="q"), intervals=(1.0,))
    [reported] = MachineDriver(saga(step("a"), notify=(notification,))).run().notified
    assert reported.call is not None
    assert reported.call.guard is not None
    assert (reported.call.guard.connection, reported.call.task_queue, reported.intervals) == ("shop", "q", (1.0,))


def test_an_undo_keeps_earlier_notifications() -> None:
    driver = MachineDriver(saga(step("a"), notify=(tell(),))).run()
    machine = Machine.restore(decode_json(encode_json(driver.machine.snapshot())))
    driver.machine = machine
    driver.feed(UndoRequested(driver.now, "returned", "kim"))
    assert moments(driver) == ["notify-0-completed", "notify-0-compensated"]
    assert [row.when for row in machine.view().notifications] == ["completed", "compensated"]


@pytest.mark.parametrize("notify", [(), (tell("parked", intervals=(0.0, 2.0)), tell())])
def test_notifications_travel_with_the_run(notify: tuple[Notification, ...]) -> None:
    definition = saga(step("a"), notify=notify)
    assert from_snapshot(decode_json(encode_json(to_snapshot(definition)))) == definition
    assert ("notify" in to_snapshot(definition)) == bool(notify)
