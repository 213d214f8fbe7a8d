"""Rule 17: semantic locks. When they are requested, what happens without them, and when they are released."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition, Locks
from sagas.protocol.messages import CancelRequested, LocksAnswered, LocksChanged, UndoRequested
from tests.unit.engine.machine.driver import START, MachineDriver, saga, step, undo

BLOCKER = {"key": "order-7", "owner": "checkout-12", "since": START - 60}


def locked(*steps: Any, keys: Any = ("order-7",), **more: Any) -> Definition:
    fields = {name: more.pop(name) for name in ("wait", "from_", "until") if name in more}
    return saga(*(steps or (step("a"), step("b"))), locks=Locks(list(keys), "shop", **fields), **more)


def answer(driver: MachineDriver, word: Any, *blockers: dict[str, Any]) -> MachineDriver:
    return driver.feed(LocksAnswered(word, driver.now, blockers))


@pytest.fixture(params=[False, True], ids=["", "restored"])
def restore(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_all_keys_are_requested_sorted_before_anything_runs(restore: bool) -> None:
    keys = ["b-${{ input.n }}", "a", "b-1", "${{ input.n }}"]
    driver = MachineDriver(locked(keys=keys), {"n": 1}, saga_id="checkout-1/pay", restore=restore).start()
    (request,) = driver.lock_requests
    assert (request.keys, request.owner, request.holder) == (("1", "a", "b-1"), "checkout-1", "checkout-1/pay")
    assert (request.connection, request.waits, driver.log) == ("shop", True, [])
    answer(driver, "granted")
    assert (driver.state, driver.log) == ("COMPLETED", ["a", "b"])
    (release,) = driver.released
    assert (release.connection, release.owner, release.holder) == ("shop", "checkout-1", "checkout-1/pay")
    assert driver.timers == {}


def test_keys_may_be_one_expression() -> None:
    definition = saga(step("a"), locks=Locks("${{ input.skus }}", "shop"))
    driver = MachineDriver(definition, {"skus": ["y", "x", "y"]}).start()
    assert driver.lock_requests[0].keys == ("x", "y")


def test_no_keys_need_no_lock() -> None:
    driver = MachineDriver(saga(step("a"), locks=Locks("${{ input.skus }}", "shop")), {"skus": []}).run()
    assert (driver.state, driver.lock_requests, driver.released) == ("COMPLETED", [], [])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "a key is a string, not null"),
        ({}, "a key is a string, not a mapping"),
        ("", "a key is empty"),
        ("x" * 201, "201 characters"),
        ("a\x1b[2J", "control characters"),
        (" a", "white space"),
    ],
)
def test_a_key_that_cannot_be_one_ends_the_saga_before_it_has_begun(value: Any, why: str) -> None:
    driver = MachineDriver(locked(keys=["${{ input.k }}"]), {"k": value}).start()
    assert (driver.state, driver.log, driver.lock_requests, driver.released) == ("COMPENSATED", [], [], [])
    reason = driver.story["reason"]
    assert reason["kind"] == "definition"
    assert why in reason["message"]
    assert "\x1b" not in reason["message"]


def test_who_waits_is_told_whom_for_and_goes_on_when_it_is_woken(restore: bool) -> None:
    driver = answer(MachineDriver(locked(), restore=restore).start(), "waiting", BLOCKER)
    view = driver.story["locks"]
    assert (view["state"], view["keys"]) == ("WAITING", ["order-7"])
    assert view["waits_for"] == [{"key": "order-7", "owner": "checkout-12", "since": "2023-11-14T22:12:20.000Z"}]
    assert driver.view.lock_wait == "waits for order-7, held by checkout-12 since 2023-11-14T22:12:20.000Z"
    assert driver.state == "RUNNING"
    driver.feed(LocksChanged(driver.now))
    assert len(driver.lock_requests) == 2
    answer(driver, "granted")
    assert (driver.state, driver.log) == ("COMPLETED", ["a", "b"])
    assert driver.story["locks"]["state"] == "RELEASED"


def test_a_wake_up_during_a_question_is_not_lost(restore: bool) -> None:
    driver = MachineDriver(locked(), restore=restore).start().feed(LocksChanged(START))
    assert len(driver.lock_requests) == 1
    answer(driver, "waiting", BLOCKER)
    assert len(driver.lock_requests) == 2


def test_a_lost_wake_up_is_made_up_for_by_a_question() -> None:
    driver = answer(MachineDriver(locked(wait=600.0)).start(), "waiting", BLOCKER)
    driver.wait(31)
    assert len(driver.lock_requests) == 2
    answer(driver, "waiting", BLOCKER).wait(59)
    assert len(driver.lock_requests) == 2
    driver.wait(2)
    assert len(driver.lock_requests) == 3


def test_when_the_wait_is_over_nothing_has_run(restore: bool) -> None:
    driver = answer(MachineDriver(locked(wait=5.0), restore=restore).start(), "waiting", BLOCKER)
    driver.wait(5)
    reason = driver.story["reason"]
    assert (driver.state, reason["kind"], reason["type"], driver.log) == ("COMPENSATED", "locked", "Locked", [])
    assert reason["message"] == "order-7 is held by checkout-12 since 2023-11-14T22:12:20.000Z"
    assert reason["details"]["blockers"][0]["owner"] == "checkout-12"
    assert len(driver.released) == 1
    assert driver.timers == {}
    answer(driver, "granted")
    assert driver.log == []


def test_a_pause_does_not_count(restore: bool) -> None:
    driver = answer(MachineDriver(locked(wait=5.0), restore=restore).start(), "waiting", BLOCKER)
    driver.wait(2).pause().wait(3600)
    assert driver.state == "RUNNING"
    driver.resume().wait(2.9)
    assert driver.state == "RUNNING"
    driver.wait(0.2)
    assert driver.story["reason"]["kind"] == "locked"


def test_a_pause_that_is_shorter_than_the_wait_does_not_count(restore: bool) -> None:
    driver = answer(MachineDriver(locked(wait=5.0), restore=restore).start(), "waiting", BLOCKER)
    driver.wait(1).pause().wait(1).resume().wait(1).pause().wait(1).resume()
    driver.wait(2.9)
    assert driver.state == "RUNNING"
    driver.wait(0.2)
    assert driver.story["reason"]["kind"] == "locked"


def test_locks_obtained_while_paused_are_kept(restore: bool) -> None:
    driver = answer(MachineDriver(locked(wait=5.0), restore=restore).start(), "waiting", BLOCKER)
    driver.pause().wait(3600)
    answer(driver, "granted").resume().run()
    assert (driver.state, driver.timers) == ("COMPLETED", {})


def test_fail_does_not_wait() -> None:
    driver = MachineDriver(locked(wait=0.0)).start()
    assert driver.lock_requests[0].waits is False
    answer(driver, "refused", BLOCKER)
    assert (driver.state, driver.story["reason"]["kind"], len(driver.released)) == ("COMPENSATED", "locked", 1)


def test_a_database_that_does_not_answer_is_not_waited_for_longer_than_said() -> None:
    for wait, limit in ((0.0, 30), (3.0, 3)):
        driver = MachineDriver(locked(wait=wait)).start().wait(limit)
        assert (driver.state, driver.story["reason"]["kind"], len(driver.released)) == ("COMPENSATED", "locked", 1)
        assert driver.story["reason"]["message"] == "order-7 not obtained in time"


def test_a_request_after_its_release_is_late() -> None:
    driver = answer(MachineDriver(locked()).start(), "late")
    assert (driver.state, driver.story["reason"]["kind"], driver.log) == ("COMPENSATED", "late", [])


@pytest.mark.parametrize("kind", ["cancelled", "parent"])
def test_a_cancel_while_it_waits_withdraws_the_request(kind: Any, restore: bool) -> None:
    driver = answer(MachineDriver(locked(), restore=restore).start(), "waiting", BLOCKER)
    driver.feed(CancelRequested(driver.now, kind))
    assert (driver.state, driver.story["reason"]["kind"], len(driver.released)) == ("COMPENSATED", kind, 1)
    assert driver.timers == {}


def test_a_deadline_while_it_waits() -> None:
    driver = answer(MachineDriver(locked(wait=60.0, deadline=9.0)).start(), "waiting", BLOCKER).wait(9)
    assert (driver.state, driver.story["reason"]["kind"], len(driver.released)) == ("COMPENSATED", "deadline", 1)


def test_locks_are_kept_while_parked_and_released_by_every_end(restore: bool) -> None:
    definition = locked(step("a"), step("b"), step("c"))
    answers: dict[str, Any] = {"c": "rejected", "b~undo": "rejected"}
    driver = answer(MachineDriver(definition, answers=answers, restore=restore).start(), "granted")
    assert (driver.state, driver.story["locks"]["state"], driver.released) == ("PARKED", "HELD", [])
    driver.decide("b", "skip")
    assert (driver.state, len(driver.released), driver.log[-1]) == ("RESIDUE", 1, "a~undo")


def test_the_release_follows_the_last_compensation() -> None:
    driver = answer(MachineDriver(locked(), answers={"b": "rejected"}, hold=["a~undo"]).start(), "granted")
    assert (driver.log, driver.released) == (["a", "b", "a~undo"], [])
    driver.end("a~undo")
    assert (driver.state, len(driver.released)) == ("COMPENSATED", 1)


def test_until_commit_releases_at_the_commit_point_and_only_once(restore: bool) -> None:
    steps = (step("a"), step("p", kind="pivot"), step("z", kind="retriable"))
    driver = answer(MachineDriver(locked(*steps, until="commit"), hold=["z"], restore=restore).start(), "granted")
    assert (driver.log, len(driver.released)) == (["a", "p", "z"], 1)
    assert driver.story["locks"]["state"] == "RELEASED"
    driver.end("z")
    assert (driver.state, len(driver.released)) == ("COMPLETED", 1)


def test_until_final_keeps_them_past_the_commit_point() -> None:
    steps = (step("p", kind="pivot"), step("z", kind="retriable"))
    driver = answer(MachineDriver(locked(*steps), hold=["z"]).start(), "granted")
    assert (driver.log, driver.released) == (["p", "z"], [])
    driver.end("z")
    assert len(driver.released) == 1


def test_from_takes_them_right_before_that_step(restore: bool) -> None:
    definition = locked(
        step("a"), step("b"), step("c"), keys=["order-${{ steps.a.result.ok ? 7 : 0 }}"], from_="b", wait=4.0
    )
    driver = MachineDriver(definition, restore=restore).start()
    assert (driver.log, driver.lock_requests[0].keys) == (["a"], ("order-7",))
    answer(driver, "waiting", BLOCKER)
    driver.wait(4)
    assert (driver.state, driver.story["reason"]["kind"]) == ("COMPENSATED", "locked")
    assert (driver.log, driver.states()["b"], len(driver.released)) == (["a", "a~undo"], "PENDING", 1)


def test_from_holds_back_only_that_step_and_what_follows() -> None:
    definition = locked(step("a"), step("b"), step("c"), from_="b", line=False)
    driver = MachineDriver(definition).start()
    assert driver.log == ["a", "c"]
    assert driver.states() == {"a": "DONE", "b": "PENDING", "c": "DONE"}
    answer(driver, "granted")
    assert driver.state == "COMPLETED"


def test_an_undo_requests_them_again_and_waits_without_limit(restore: bool) -> None:
    driver = answer(MachineDriver(locked(wait=0.0), restore=restore, generation=2).start(), "granted")
    assert driver.state == "COMPLETED"
    driver.feed(UndoRequested(driver.now, "by mistake", "kim"))
    request = driver.lock_requests[-1]
    assert (request.keys, request.holder, request.waits) == (("order-7",), "s1~2~undo", True)
    assert (driver.state, driver.undone) == ("COMPENSATING", [])
    answer(driver, "waiting", BLOCKER).wait(3)
    assert driver.story["locks"]["waits_for"][0]["owner"] == "checkout-12"
    for _ in range(5):
        driver.wait(3_000)
        answer(driver, "waiting", BLOCKER)
    assert driver.state == "COMPENSATING"
    driver.feed(LocksChanged(driver.now))
    answer(driver, "granted")
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])
    assert [event.holder for event in driver.released] == ["s1~2", "s1~2~undo"]


def test_a_saga_that_only_goes_forward_can_be_refused_before_it_starts(restore: bool) -> None:
    definition = locked(step("a", kind="retriable"), recovery="forward")
    driver = MachineDriver(definition, restore=restore).start()
    assert (driver.state, driver.machine.cancel_response()) == ("RUNNING", "accepted")
    answer(driver, "granted")
    assert driver.state == "COMPLETED"
    refused = answer(MachineDriver(definition).start(), "refused", BLOCKER)
    assert (refused.state, refused.log) == ("COMPENSATED", [])


def test_a_run_that_continues_a_terminated_one_releases_again() -> None:
    steps = (step("p", kind="pivot"), step("z", kind="retriable"))
    driver = answer(MachineDriver(locked(*steps, until="commit"), hold=["z"]).start(), "granted")
    assert len(driver.released) == 1
    driver.feed(CancelRequested(driver.now, "terminated"))
    driver.end("z")
    assert (driver.state, len(driver.released)) == ("COMPLETED", 2)


def test_a_request_in_flight_is_reissued() -> None:
    driver = MachineDriver(locked()).start()
    assert driver.lock_requests[0] in driver.machine.reissue(driver.now)
    answer(driver, "waiting", BLOCKER)
    assert driver.lock_requests[0] not in driver.machine.reissue(driver.now)


def test_a_saga_without_locks_says_nothing_about_them() -> None:
    driver = MachineDriver(saga(step("a", compensate=undo("un.a")))).run()
    assert "locks" not in driver.story
    assert "locks" not in driver.machine.snapshot()
    assert driver.released == []


def test_who_waits_for_a_parked_saga_is_told_so() -> None:
    driver = answer(MachineDriver(locked(wait=5.0)).start(), "waiting", {**BLOCKER, "parked": True})
    hint = "; that saga is parked and waits for an operator: saga show checkout-12"
    assert (driver.view.lock_wait or "").endswith(hint)
    assert driver.story["locks"]["waits_for"][0]["parked"] is True
    driver.wait(5)
    assert driver.story["reason"]["message"] == f"order-7 is held by checkout-12 since 2023-11-14T22:12:20.000Z{hint}"
