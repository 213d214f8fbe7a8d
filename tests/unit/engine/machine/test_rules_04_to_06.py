"""Rules 4 to 6: before and after the commit point, the pivot, and cancel."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import START, World, op, probe, saga, step

PIVOT = saga(step("a"), step("p", kind="pivot"), step("n", kind="retriable"))
OPEN_PIVOT = saga(step("a"), step("p", kind="pivot", on=None))
PROBED_PIVOT = saga(step("a"), step("p", kind="pivot", on=None, probe=probe(seals=True)))

# --- rule 4 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["rejected", "failed", "unknown", "infrastructure"])
def test_rule_04_before_the_commit_point_every_failure_leads_backward(word: str) -> None:
    world = World(saga(step("a"), step("b")), answers={"b": word}).run()
    assert world.state == "COMPENSATED"
    assert world.undone == ["a"]


def test_rule_04_the_deadline_leads_backward_before_the_commit_point() -> None:
    world = World(saga(step("a"), step("b"), deadline=60.0), hold=["b"]).run()
    assert world.now == START + 60
    assert world.cancelled == ["b"]
    world.end("b", "unknown")
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "deadline"


def test_rule_04_the_deadline_ends_at_the_commit_point() -> None:
    definition = saga(step("p", kind="pivot"), step("n", kind="retriable"), deadline=60.0)
    world = World(definition, hold=["n"]).start()
    assert world.timers == {}
    assert world.story["deadline_at"] is None


@pytest.mark.parametrize("word", ["unknown", "failed", "infrastructure", "not_started"])
def test_rule_04_after_the_commit_point_a_step_is_repeated_without_limit_at_a_capped_interval(word: str) -> None:
    world = World(PIVOT, answers={"n": [word] * 30 + ["done"]}).run()
    assert world.state == "COMPLETED"
    assert world.log.count("n") == 31
    assert world.now == START + 30 * 60
    assert world.undone == []


@pytest.mark.parametrize("word", ["rejected", "definition"])
def test_rule_04_after_the_commit_point_a_rejection_or_failed_without_retry_parks(word: str) -> None:
    world = World(PIVOT, answers={"n": word}).run()
    assert world.state == "PARKED"
    assert world.story["phase"] == "committed"
    assert world.undone == []


def test_rule_04_every_call_has_a_finite_number_of_attempts() -> None:
    world = World(PIVOT, answers={"n": ["unknown", "done"]}).run()
    assert all(call.retry.max_attempts == 3 for call in world.calls)


def test_rule_04_no_retriable_step_starts_before_the_commit_point() -> None:
    definition = saga(
        step("a"), step("n", kind="retriable", needs=("a",)), step("p", kind="pivot", needs=("a",)), line=False
    )
    world = World(definition, hold=["p"]).run()
    assert world.log == ["a", "p"]


def test_rule_04_trouble_after_the_commit_point_is_recorded_once() -> None:
    world = World(PIVOT, answers={"n": ["unknown"] * 5 + ["done"]}).run()
    assert [(record.state, record.step) for record in world.records] == [("COMMITTED", "n")]


@pytest.mark.parametrize("on_failure", ["park", "continue"])
def test_rule_04_with_park_or_continue_max_attempts_counts_after_the_commit_point(on_failure: Any) -> None:
    definition = saga(step("p", kind="pivot"), step("n", kind="retriable", on_failure=on_failure))
    world = World(definition, answers={"n": "failed"}).run()
    assert world.log.count("n") == 1
    assert world.state == ("PARKED" if on_failure == "park" else "COMPLETED")


# --- rule 5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["rejected", "failed", "unknown", "infrastructure"])
def test_rule_05_a_guarded_pivot_that_is_not_done_is_sealed_won_means_backward(word: str) -> None:
    world = World(PIVOT, answers={"p": word}).run()
    assert world.log == ["a", "p", "p~seal", "a~undo"]
    assert world.state == "COMPENSATED"


@pytest.mark.parametrize("word", ["failed", "unknown"])
def test_rule_05_a_seal_that_lost_means_done_and_forward(word: str) -> None:
    world = World(PIVOT, answers={"p": word, "p~seal": "done"}).run()
    assert world.log == ["a", "p", "p~seal", "n"]
    assert world.state == "COMPLETED"
    assert world.story["reason"] is None


def test_rule_05_the_seal_is_repeated_without_limit() -> None:
    world = World(PIVOT, answers={"p": "unknown", "p~seal": ["unknown"] * 40 + ["sealed"]}).run()
    assert world.log.count("p~seal") == 41
    assert world.state == "COMPENSATED"


@pytest.mark.parametrize("lost", ["done", "sealed"])
def test_rule_05_cancel_while_the_pivot_is_in_flight_is_recorded_and_the_row_decides(lost: str) -> None:
    world = World(PIVOT, answers={"p~seal": lost}, hold=["p"]).start()
    assert world.machine.cancel_response() == "recorded"
    world.cancel()
    assert world.state == "RUNNING"
    assert world.cancelled == ["p"]  # a guarded pivot starts no new attempt
    assert world.machine.cancel_response() == "already"
    world.end("p", "unknown").run()
    assert world.state == ("COMPLETED" if lost == "done" else "COMPENSATED")
    if lost == "sealed":
        assert world.story["reason"]["kind"] == "cancelled"


def test_rule_05_done_goes_forward_whatever_was_recorded() -> None:
    definition = saga(step("a"), step("p", kind="pivot"), deadline=5.0)
    world = World(definition, hold=["p"]).start().cancel().wait(10)
    world.end("p", "done")
    assert world.state == "COMPLETED"


def test_rule_05_the_first_recorded_cause_is_the_reason() -> None:
    definition = saga(step("a"), step("p", kind="pivot"), deadline=5.0)
    world = World(definition, hold=["p"]).start().wait(10).cancel()
    world.end("p", "rejected")
    assert world.story["reason"]["kind"] == "deadline"


def test_rule_05_a_cancel_recorded_before_an_attempts_end_wins_over_that_end() -> None:
    world = World(PIVOT, hold=["p"]).start().cancel().end("p", "rejected")
    assert world.story["reason"]["kind"] == "cancelled"


def test_rule_05_the_pivot_call_may_not_be_cancelled_by_the_platform() -> None:
    world = World(PIVOT).run()
    assert [call.cancellable for call in world.calls] == [True, False, True]


def test_rule_05_an_unguarded_pivot_in_flight_may_go_on_asking() -> None:
    world = World(OPEN_PIVOT, hold=["p"]).start().cancel()
    assert world.cancelled == []
    assert world.state == "RUNNING"


@pytest.mark.parametrize(
    ("answers", "state", "log"),
    [
        ({"p": ("rejected", 1)}, "COMPENSATED", ["a", "p", "a~undo"]),  # the first and only attempt
        ({"p": ("rejected", 2), "p~probe": "found"}, "COMPLETED", ["a", "p", "p~probe"]),
        ({"p": ("rejected", 2), "p~probe": "absent"}, "COMPENSATED", ["a", "p", "p~probe", "a~undo"]),
        ({"p": "unknown", "p~probe": "found"}, "COMPLETED", ["a", "p", "p~probe"]),
        ({"p": "unknown", "p~probe": "absent"}, "COMPENSATED", ["a", "p", "p~probe", "a~undo"]),
        ({"p": "unknown", "p~probe": "unsure"}, "PARKED", ["a", "p", "p~probe"]),
    ],
)
def test_rule_05_an_unguarded_pivot_goes_back_only_on_certainty(
    answers: dict[str, Any], state: str, log: list[str]
) -> None:
    world = World(PROBED_PIVOT, answers=answers).run()
    assert world.state == state
    assert world.log == log


@pytest.mark.parametrize("word", ["unknown", "failed"])
def test_rule_05_without_a_probe_an_unguarded_pivot_parks_after_max_attempts(word: str) -> None:
    world = World(OPEN_PIVOT, answers={"p": word}).run()
    assert world.state == "PARKED"
    assert world.undone == []


def test_rule_05_an_unguarded_pivot_rejected_after_an_unknown_attempt_is_asked_again() -> None:
    world = World(OPEN_PIVOT, answers={"p": [("rejected", 2), "done"]}).run()
    assert world.log == ["a", "p", "p"]
    assert world.state == "COMPLETED"


def test_rule_05_probing_goes_on_while_the_unguarded_pivot_is_parked() -> None:
    world = World(PROBED_PIVOT, answers={"p": "unknown", "p~probe": ["unsure"] * 5 + ["found"]}).run()
    assert world.state == "PARKED"
    world.wait(60 * 5)
    assert world.state == "COMPLETED"
    assert world.story["parked"] == []


@pytest.mark.parametrize("event", ["cancel", "deadline"])
def test_rule_05_no_timeout_decides_about_a_parked_unguarded_pivot(event: str) -> None:
    definition = saga(step("a"), step("p", kind="pivot", on=None), deadline=600.0)
    world = World(definition, answers={"p": "unknown"}).run()
    world.cancel() if event == "cancel" else world.wait(601)
    assert world.state == "PARKED"
    assert world.undone == []


def test_rule_05_a_failure_beside_the_pivot_is_recorded_and_parks_when_the_pivot_is_done() -> None:
    read = step("r", kind="read")
    definition = saga(step("p", kind="pivot"), read, line=False)
    world = World(definition, hold=["p", "r"]).start()
    world.end("r", "rejected")
    assert world.state == "RUNNING"
    assert world.cancelled == ["p"]
    world.end("p", "done")
    assert world.state == "PARKED"
    assert world.story["phase"] == "committed"


def test_rule_05_a_failure_beside_the_pivot_leads_backward_when_the_pivot_is_sealed() -> None:
    definition = saga(step("p", kind="pivot"), step("r", kind="read"), line=False)
    world = World(definition, hold=["p", "r"]).start().end("r", "rejected").end("p", "unknown")
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["step"] == "r"


@pytest.mark.parametrize("on", ["shop", None])
def test_rule_05_a_pivot_that_never_started_does_not_hold_a_cancel(on: str | None) -> None:
    definition = saga(step("a"), step("p", kind="pivot", on=on))
    world = World(definition, answers={"p": "not_started"}).start()
    assert world.timers == {"p~retry": START + 60}
    world.cancel()
    assert world.state == "COMPENSATED"


def test_rule_05_a_parked_guarded_pivot_is_sealed_when_a_cancel_comes() -> None:
    definition = saga(step("a"), step("p", kind="pivot", on_failure="park"))
    world = World(definition, answers={"p": "unknown"}).run()
    assert world.state == "PARKED"
    world.cancel()
    assert world.log == ["a", "p", "p~seal", "a~undo"]
    assert world.story["reason"]["kind"] == "cancelled"


def test_rule_05_a_definition_fault_of_a_pivot_that_was_never_called_leads_backward() -> None:
    definition = saga(step("a"), step("p", kind="pivot", with_={"x": "${{ input.none }}"}))
    world = World(definition).run()
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "definition"


# --- idempotent: false -----------------------------------------------------------------------------------------------


def test_not_idempotent_calls_are_never_repeated_by_the_platform() -> None:
    world = World(saga(step("a", on=None, idempotent=False))).run()
    assert world.call("a").at_most_once
    assert world.call("a").retry.max_attempts == 1


def test_not_idempotent_an_unknown_attempt_is_repeated_only_after_a_probe_says_absent() -> None:
    definition = saga(step("a", on=None, idempotent=False, probe=probe(seals=True)))
    answers = {"a": ["unknown", "done"], "a~probe": ["unsure", "absent"]}
    world = World(definition, answers=answers).run()
    assert world.log == ["a", "a~probe", "a~probe", "a"]
    assert world.state == "COMPLETED"


def test_not_idempotent_without_a_probe_an_unknown_attempt_is_the_last() -> None:
    world = World(saga(step("a", on=None, idempotent=False)), answers={"a": "unknown"}).run()
    assert world.log == ["a", "a~undo"]


def test_not_idempotent_a_rejection_after_an_unknown_attempt_is_unknown() -> None:
    definition = saga(step("a", on=None, idempotent=False, probe=probe(seals=True)))
    answers = {"a": ["unknown", "rejected"], "a~probe": ["absent", "unsure"]}
    world = World(definition, answers=answers).run()
    assert world.row("a")["outcome"] == "unknown"
    assert world.undone == ["a"]
    assert world.story["reason"]["kind"] == "rejected"  # the last attempt's own word


# --- rule 6 ----------------------------------------------------------------------------------------------------------


def test_rule_06_cancel_undoes_what_was_done_and_the_second_is_a_no_op() -> None:
    world = World(saga(step("a"), step("b")), hold=["b"]).start()
    assert world.machine.cancel_response() == "accepted"
    world.cancel()
    assert world.machine.cancel_response() == "already"
    before = list(world.log), list(world.cancelled)
    world.cancel()
    assert (world.log, world.cancelled) == before
    world.end("b", "unknown")
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "cancelled"
    assert world.story["cancel_requested"]
    assert world.machine.cancel_response() == "finished"


def test_rule_06_past_the_commit_point_cancel_changes_nothing() -> None:
    world = World(PIVOT, hold=["n"]).start()
    assert world.machine.cancel_response() == "past the point of no return"
    world.cancel()
    assert world.cancelled == []
    world.end("n", "done")
    assert world.state == "COMPLETED"


def test_rule_06_cancel_before_the_first_step_runs_nothing() -> None:
    world = World(saga(step("a", do=op("wait", {"for": "1h"}), kind="read"), step("b"))).start().cancel()
    assert world.state == "COMPENSATED"
    assert world.log == []


@pytest.mark.parametrize("event", ["cancel", "deadline"])
def test_rule_06_a_parked_saga_goes_backward_on_cancel_and_deadline(event: str) -> None:
    definition = saga(step("a"), step("b", on_failure="park"), deadline=600.0)
    world = World(definition, answers={"b": "rejected"}).run()
    assert world.state == "PARKED"
    world.cancel() if event == "cancel" else world.wait(601)
    assert world.state == "COMPENSATED"
    assert world.story["parked"] == []


def test_recovery_forward_refuses_cancel_and_parks_on_rejection() -> None:
    definition = saga(step("a", kind="retriable"), step("b", kind="retriable"), recovery="forward")
    world = World(definition, answers={"b": "rejected"}).run()
    assert world.machine.cancel_response() == "past the point of no return"
    assert world.state == "PARKED"
    assert world.story["phase"] == "committed"


# --- the joined outcome (guarantees §1) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "word", "attempt", "joined"),
    [
        ("shop", "rejected", 1, "rejected"),
        ("shop", "rejected", 2, "unknown"),  # attempt 1 may still have happened
        ("shop", "failed", 2, "unknown"),
        ("shop", "rejected", None, "unknown"),  # nobody told the number
        (None, "rejected", 2, "rejected"),  # the participant remembers refusals under the key
        (None, "failed", 2, "unknown"),  # the engine's own word about that attempt only
        ("shop", "unknown", None, "unknown"),
    ],
)
def test_the_outcome_joins_all_attempts(on: str | None, word: str, attempt: int | None, joined: str) -> None:
    end = Outcome(word, attempt=attempt, retryable=False)  # pyright: ignore[reportArgumentType]
    world = World(saga(step("a", on=on, compensate=None)), answers={"a": end}).run()
    assert world.row("a")["outcome"] == joined


def test_a_local_attempt_is_never_alone() -> None:
    definition = saga(step("a", execution="local"))
    world = World(definition, answers={"a": ("rejected", 1)}).run()
    assert world.row("a")["outcome"] == "unknown"
    assert world.log == ["a", "a~seal"]


def test_not_idempotent_past_the_commit_point_a_probe_stands_before_every_repetition() -> None:
    keyless = step("n", kind="retriable", on=None, idempotent=False, probe=probe(seals=True))
    answers = {"n": ["unknown", "done"], "n~probe": ["unsure"] * 9 + ["absent"]}
    world = World(saga(step("p", kind="pivot"), keyless), answers=answers).run()
    assert world.log.count("n~probe") == 10
    assert world.log.count("n") == 2
    assert world.state == "COMPLETED"
    bare = step("n", kind="retriable", on=None, idempotent=False)
    assert World(saga(step("p", kind="pivot"), bare), answers={"n": "unknown"}).run().state == "PARKED"
