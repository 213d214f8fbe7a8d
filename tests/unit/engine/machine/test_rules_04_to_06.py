"""Rules 4 to 6: before and after the commit point, the pivot, and cancel."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.protocol.outcomes import Failure, Outcome
from tests.unit.engine.machine.driver import START, MachineDriver, op, probe, saga, step

PIVOT = saga(step("a"), step("p", kind="pivot"), step("n", kind="retriable"))
OPEN_PIVOT = saga(step("a"), step("p", kind="pivot", on=None))
PROBED_PIVOT = saga(step("a"), step("p", kind="pivot", on=None, probe=probe(seals=True)))

# --- rule 4 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["rejected", "failed", "unknown", "infrastructure"])
def test_rule_04_before_the_commit_point_every_failure_leads_backward(outcome: str) -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": outcome}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]


def test_rule_04_the_deadline_leads_backward_before_the_commit_point() -> None:
    driver = MachineDriver(saga(step("a"), step("b"), deadline=60.0), hold=["b"]).run()
    assert driver.now == START + 60
    assert driver.cancelled == ["b"]
    driver.end("b", "unknown")
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "deadline"


def test_rule_04_the_deadline_ends_at_the_commit_point() -> None:
    definition = saga(step("p", kind="pivot"), step("n", kind="retriable"), deadline=60.0)
    driver = MachineDriver(definition, hold=["n"]).start()
    assert driver.timers == {}
    assert driver.story["deadline_at"] is None


@pytest.mark.parametrize("outcome", ["unknown", "failed", "infrastructure", "not_started"])
def test_rule_04_after_the_commit_point_a_step_is_repeated_without_limit_at_a_capped_interval(outcome: str) -> None:
    driver = MachineDriver(PIVOT, answers={"n": [outcome] * 30 + ["done"]}).run()
    assert driver.state == "COMPLETED"
    assert driver.log.count("n") == 31
    assert driver.now == START + 30 * 60
    assert driver.undone == []


@pytest.mark.parametrize("outcome", ["rejected", "definition"])
def test_rule_04_after_the_commit_point_a_rejection_or_failed_without_retry_parks(outcome: str) -> None:
    driver = MachineDriver(PIVOT, answers={"n": outcome}).run()
    assert driver.state == "PARKED"
    assert driver.story["phase"] == "committed"
    assert driver.undone == []


def test_rule_04_every_call_has_a_finite_number_of_attempts() -> None:
    driver = MachineDriver(PIVOT, answers={"n": ["unknown", "done"]}).run()
    assert all(call.retry.max_attempts == 3 for call in driver.calls)


def test_rule_04_no_retriable_step_starts_before_the_commit_point() -> None:
    definition = saga(
        step("a"), step("n", kind="retriable", needs=("a",)), step("p", kind="pivot", needs=("a",)), line=False
    )
    driver = MachineDriver(definition, hold=["p"]).run()
    assert driver.log == ["a", "p"]


def test_rule_04_a_failure_after_the_commit_point_is_recorded_once() -> None:
    driver = MachineDriver(PIVOT, answers={"n": ["unknown"] * 5 + ["done"]}).run()
    assert [(record.state, record.step) for record in driver.records] == [("COMMITTED", "n")]


@pytest.mark.parametrize("on_failure", ["park", "continue"])
def test_rule_04_with_park_or_continue_max_attempts_counts_after_the_commit_point(on_failure: Any) -> None:
    definition = saga(step("p", kind="pivot"), step("n", kind="retriable", on_failure=on_failure))
    driver = MachineDriver(definition, answers={"n": "failed"}).run()
    assert driver.log.count("n") == 1
    assert driver.state == ("PARKED" if on_failure == "park" else "COMPLETED")


# --- rule 5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["rejected", "failed", "unknown", "infrastructure"])
def test_rule_05_a_guarded_pivot_that_is_not_done_is_sealed_won_means_backward(outcome: str) -> None:
    driver = MachineDriver(PIVOT, answers={"p": outcome}).run()
    assert driver.log == ["a", "p", "p~seal", "a~undo"]
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize("outcome", ["failed", "unknown"])
def test_rule_05_a_seal_that_lost_means_done_and_forward(outcome: str) -> None:
    driver = MachineDriver(PIVOT, answers={"p": outcome, "p~seal": "done"}).run()
    assert driver.log == ["a", "p", "p~seal", "n"]
    assert driver.state == "COMPLETED"
    assert driver.story["reason"] is None


def test_rule_05_the_seal_is_repeated_without_limit() -> None:
    driver = MachineDriver(PIVOT, answers={"p": "unknown", "p~seal": ["unknown"] * 40 + ["sealed"]}).run()
    assert driver.log.count("p~seal") == 41
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize("lost", ["done", "sealed"])
def test_rule_05_cancel_while_the_pivot_is_in_flight_is_recorded_and_the_row_decides(lost: str) -> None:
    driver = MachineDriver(PIVOT, answers={"p~seal": lost}, hold=["p"]).start()
    assert driver.machine.cancel_response() == "recorded"
    driver.cancel()
    assert driver.state == "RUNNING"
    assert driver.cancelled == ["p"]  # a guarded pivot starts no new attempt
    assert driver.machine.cancel_response() == "already"
    driver.end("p", "unknown").run()
    assert driver.state == ("COMPLETED" if lost == "done" else "COMPENSATED")
    if lost == "sealed":
        assert driver.story["reason"]["kind"] == "cancelled"


def test_rule_05_done_goes_forward_whatever_was_recorded() -> None:
    definition = saga(step("a"), step("p", kind="pivot"), deadline=5.0)
    driver = MachineDriver(definition, hold=["p"]).start().cancel().wait(10)
    driver.end("p", "done")
    assert driver.state == "COMPLETED"


def test_rule_05_the_first_recorded_cause_is_the_reason() -> None:
    definition = saga(step("a"), step("p", kind="pivot"), deadline=5.0)
    driver = MachineDriver(definition, hold=["p"]).start().wait(10).cancel()
    driver.end("p", "rejected")
    assert driver.story["reason"]["kind"] == "deadline"


def test_rule_05_a_cancel_recorded_before_an_attempts_end_wins_over_that_end() -> None:
    driver = MachineDriver(PIVOT, hold=["p"]).start().cancel().end("p", "rejected")
    assert driver.story["reason"]["kind"] == "cancelled"


def test_rule_05_the_pivot_call_may_not_be_cancelled_by_the_platform() -> None:
    driver = MachineDriver(PIVOT).run()
    assert [call.cancellable for call in driver.calls] == [True, False, True]


def test_rule_05_an_unguarded_pivot_in_flight_may_keep_probing() -> None:
    driver = MachineDriver(OPEN_PIVOT, hold=["p"]).start().cancel()
    assert driver.cancelled == []
    assert driver.state == "RUNNING"


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
def test_rule_05_an_unguarded_pivot_compensates_only_on_certainty(
    answers: dict[str, Any], state: str, log: list[str]
) -> None:
    driver = MachineDriver(PROBED_PIVOT, answers=answers).run()
    assert driver.state == state
    assert driver.log == log


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_rule_05_without_a_probe_an_unguarded_pivot_parks_after_max_attempts(outcome: str) -> None:
    driver = MachineDriver(OPEN_PIVOT, answers={"p": outcome}).run()
    assert driver.state == "PARKED"
    assert driver.undone == []


@pytest.mark.parametrize(
    ("probe_says", "calls", "state"),
    [(None, 1, "PARKED"), ("unsure", 1, "PARKED"), ("absent", 1, "COMPENSATED"), ("found", 1, "COMPLETED")],
)
def test_rule_05_an_unguarded_pivot_is_not_repeated_for_an_answer_without_a_result(
    probe_says: str | None, calls: int, state: str
) -> None:
    unreadable = Outcome("unknown", failure=Failure("definition", "its body has a name twice"), retryable=False)
    answers = {"p": unreadable, **({"p~probe": probe_says} if probe_says else {})}
    driver = MachineDriver(PROBED_PIVOT if probe_says else OPEN_PIVOT, answers=answers).run()
    assert (driver.log.count("p"), driver.state) == (calls, state)
    if state == "PARKED":
        assert driver.row("p")["error"]["message"] == "its body has a name twice"


def test_rule_05_an_unguarded_pivot_rejected_after_an_unknown_attempt_is_asked_again() -> None:
    driver = MachineDriver(OPEN_PIVOT, answers={"p": [("rejected", 2), "done"]}).run()
    assert driver.log == ["a", "p", "p"]
    assert driver.state == "COMPLETED"


def test_rule_05_probing_goes_on_while_the_unguarded_pivot_is_parked() -> None:
    driver = MachineDriver(PROBED_PIVOT, answers={"p": "unknown", "p~probe": ["unsure"] * 5 + ["found"]}).run()
    assert driver.state == "PARKED"
    [parked] = driver.story["parked"]
    assert parked["next_probe_at"] > parked["since"], "an operator sees when it may end by itself"
    driver.wait(60 * 5)
    assert driver.state == "COMPLETED"
    assert driver.story["parked"] == []


@pytest.mark.parametrize("event", ["cancel", "deadline"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"signal": "go"},
        {"for": "2h"},
        {"signal": "go", "timeout": "2h"},
        {"signal": "go", "timeout": "0s", "on_timeout": "park"},
    ],
)
def test_rules_02_and_05_a_wait_as_the_pivot_ends_at_once(event: str, arguments: dict[str, str]) -> None:
    """No attempt of it could have an effect that is not known."""
    definition = saga(step("a"), step("p", kind="pivot", do=op("wait", arguments)), deadline=600)
    driver = MachineDriver(definition).start()
    if event == "cancel":
        assert driver.machine.cancel_response() == "accepted"
        driver.cancel()
    else:
        driver.wait(601)
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]


@pytest.mark.parametrize("event", ["cancel", "deadline"])
def test_rule_05_no_timeout_decides_about_a_parked_unguarded_pivot(event: str) -> None:
    definition = saga(step("a"), step("p", kind="pivot", on=None), deadline=600.0)
    driver = MachineDriver(definition, answers={"p": "unknown"}).run()
    driver.cancel() if event == "cancel" else driver.wait(601)
    assert driver.state == "PARKED"
    assert driver.undone == []


def test_rule_05_a_failure_parallel_to_the_pivot_is_recorded_and_parks_when_the_pivot_is_done() -> None:
    read = step("r", kind="read")
    definition = saga(step("p", kind="pivot"), read, line=False)
    driver = MachineDriver(definition, hold=["p", "r"]).start()
    driver.end("r", "rejected")
    assert driver.state == "RUNNING"
    assert driver.cancelled == ["p"]
    driver.end("p", "done")
    assert driver.state == "PARKED"
    assert driver.story["phase"] == "committed"


def test_rule_05_a_failure_parallel_to_the_pivot_leads_backward_when_the_pivot_is_sealed() -> None:
    definition = saga(step("p", kind="pivot"), step("r", kind="read"), line=False)
    driver = MachineDriver(definition, hold=["p", "r"]).start().end("r", "rejected").end("p", "unknown")
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["step"] == "r"


@pytest.mark.parametrize("on", ["shop", None])
def test_rule_05_a_pivot_that_never_started_does_not_hold_a_cancel(on: str | None) -> None:
    definition = saga(step("a"), step("p", kind="pivot", on=on))
    driver = MachineDriver(definition, answers={"p": "not_started"}).start()
    assert driver.timers == {"p~retry": START + 60}
    driver.cancel()
    assert driver.state == "COMPENSATED"


def test_rule_05_a_parked_guarded_pivot_is_sealed_when_a_cancel_comes() -> None:
    definition = saga(step("a"), step("p", kind="pivot", on_failure="park"))
    driver = MachineDriver(definition, answers={"p": "unknown"}).run()
    assert driver.state == "PARKED"
    driver.cancel()
    assert driver.log == ["a", "p", "p~seal", "a~undo"]
    assert driver.story["reason"]["kind"] == "cancelled"


def test_rule_05_a_definition_fault_of_a_pivot_that_was_never_called_leads_backward() -> None:
    definition = saga(step("a"), step("p", kind="pivot", with_={"x": "${{ input.none }}"}))
    driver = MachineDriver(definition).run()
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "definition"


# --- idempotent: false -----------------------------------------------------------------------------------------------


def test_not_idempotent_calls_are_never_repeated_by_the_platform() -> None:
    driver = MachineDriver(saga(step("a", on=None, idempotent=False))).run()
    assert driver.call("a").at_most_once
    assert driver.call("a").retry.max_attempts == 1


def test_not_idempotent_an_unknown_attempt_is_repeated_only_after_a_probe_says_absent() -> None:
    definition = saga(step("a", on=None, idempotent=False, probe=probe(seals=True)))
    answers = {"a": ["unknown", "done"], "a~probe": ["unsure", "absent"]}
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.log == ["a", "a~probe", "a~probe", "a"]
    assert driver.state == "COMPLETED"


def test_not_idempotent_without_a_probe_an_unknown_attempt_is_the_last() -> None:
    driver = MachineDriver(saga(step("a", on=None, idempotent=False)), answers={"a": "unknown"}).run()
    assert driver.log == ["a", "a~undo"]


def test_not_idempotent_a_rejection_after_an_unknown_attempt_is_unknown() -> None:
    definition = saga(step("a", on=None, idempotent=False, probe=probe(seals=True)))
    answers = {"a": ["unknown", "rejected"], "a~probe": ["absent", "unsure"]}
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.row("a")["outcome"] == "unknown"
    assert driver.undone == ["a"]
    assert driver.story["reason"]["kind"] == "rejected"  # the outcome of the last attempt


# --- rule 6 ----------------------------------------------------------------------------------------------------------


def test_rule_06_cancel_undoes_what_was_done_and_the_second_is_a_no_op() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b"]).start()
    assert driver.machine.cancel_response() == "accepted"
    driver.cancel()
    assert driver.machine.cancel_response() == "already"
    before = list(driver.log), list(driver.cancelled)
    driver.cancel()
    assert (driver.log, driver.cancelled) == before
    driver.end("b", "unknown")
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "cancelled"
    assert driver.story["cancel_requested"]
    assert driver.machine.cancel_response() == "finished"


def test_rule_06_past_the_commit_point_cancel_changes_nothing() -> None:
    driver = MachineDriver(PIVOT, hold=["n"]).start()
    assert driver.machine.cancel_response() == "past the point of no return"
    driver.cancel()
    assert driver.cancelled == []
    driver.end("n", "done")
    assert driver.state == "COMPLETED"


def test_rule_06_cancel_before_the_first_step_runs_nothing() -> None:
    driver = MachineDriver(saga(step("a", do=op("wait", {"for": "1h"}), kind="read"), step("b"))).start().cancel()
    assert driver.state == "COMPENSATED"
    assert driver.log == []


@pytest.mark.parametrize("event", ["cancel", "deadline"])
def test_rule_06_a_parked_saga_goes_backward_on_cancel_and_deadline(event: str) -> None:
    definition = saga(step("a"), step("b", on_failure="park"), deadline=600.0)
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    assert driver.state == "PARKED"
    driver.cancel() if event == "cancel" else driver.wait(601)
    assert driver.state == "COMPENSATED"
    assert driver.story["parked"] == []


def test_recovery_forward_refuses_cancel_and_parks_on_rejection() -> None:
    definition = saga(step("a", kind="retriable"), step("b", kind="retriable"), recovery="forward")
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    assert driver.machine.cancel_response() == "past the point of no return"
    assert driver.state == "PARKED"
    assert driver.story["phase"] == "committed"


# --- the joined outcome (guarantees §1) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "word", "attempt", "joined"),
    [
        ("shop", "rejected", 1, "rejected"),
        ("shop", "rejected", 2, "unknown"),  # attempt 1 may still have happened
        ("shop", "failed", 2, "unknown"),
        ("shop", "rejected", None, "unknown"),  # the number is unknown
        (None, "rejected", 2, "unknown"),  # the first attempt may be in progress
        (None, "rejected", None, "unknown"),
        (None, "failed", 2, "unknown"),  # the engine's own outcome for that attempt only
        ("shop", "unknown", None, "unknown"),
    ],
)
def test_the_outcome_merges_all_attempts(on: str | None, word: str, attempt: int | None, joined: str) -> None:
    end = Outcome(word, attempt=attempt, retryable=False)  # pyright: ignore[reportArgumentType]
    driver = MachineDriver(saga(step("a", on=on, compensate=None)), answers={"a": end}).run()
    assert driver.row("a")["outcome"] == joined


@pytest.mark.parametrize(
    ("answers", "joined"),
    [
        ([Outcome("failed", attempt=3, nothing_before=True)], "failed"),
        ([Outcome("rejected", attempt=3, nothing_before=True, retryable=False)], "rejected"),
        ([Outcome("failed", attempt=1), Outcome("failed", attempt=2, nothing_before=True)], "failed"),
        ([Outcome("unknown", attempt=1), Outcome("failed", attempt=2, nothing_before=True)], "unknown"),
        ([Outcome("failed", attempt=1), Outcome("failed", attempt=2)], "unknown"),
    ],
)
@pytest.mark.parametrize("on", ["shop", None])
def test_failures_that_all_say_that_nothing_happened_make_the_step_failed(
    on: str | None, answers: list[Outcome], joined: str
) -> None:
    """The second call follows an operator's retry."""
    driver = MachineDriver(saga(step("a", on=on, on_failure="park")), answers={"a": answers}).run()
    if len(answers) > 1:
        driver.decide("a", "retry").run()
    assert (driver.row("a")["outcome"], driver.state) == (joined, "PARKED")


def test_a_local_attempt_may_have_hidden_predecessors() -> None:
    definition = saga(step("a", execution="local"))
    driver = MachineDriver(definition, answers={"a": ("rejected", 1)}).run()
    assert driver.log == ["a", "a~seal"]  # the rejection is believed once the seal has won
    assert (driver.row("a")["outcome"], driver.row("a")["state"]) == ("rejected", "NOTHING_TO_UNDO")


def test_not_idempotent_past_the_commit_point_a_probe_stands_before_every_repetition() -> None:
    keyless = step("n", kind="retriable", on=None, idempotent=False, probe=probe(seals=True))
    answers = {"n": ["unknown", "done"], "n~probe": ["unsure"] * 9 + ["absent"]}
    driver = MachineDriver(saga(step("p", kind="pivot"), keyless), answers=answers).run()
    assert driver.log.count("n~probe") == 10
    assert driver.log.count("n") == 2
    assert driver.state == "COMPLETED"
    bare = step("n", kind="retriable", on=None, idempotent=False)
    assert MachineDriver(saga(step("p", kind="pivot"), bare), answers={"n": "unknown"}).run().state == "PARKED"
