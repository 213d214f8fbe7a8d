"""What follows for the attempts of runs whose runner was lost."""

from __future__ import annotations

from saga_spark.job_errors import RunnerLost
from saga_spark.runner.runner_client import DEDICATED_RUNNER_AFTER, MAX_CONSECUTIVE_LOSSES, Losses
from sagas.errors import InfrastructureError, NeedsOperator, Unavailable

KILLED = RunnerLost("the runner was killed")
FULL = RunnerLost("out of memory", memory=True)


def test_a_lost_runner_is_no_attempt_of_its_runs() -> None:
    assert type(Losses().lost("stage a", KILLED, alone=True)) is Unavailable
    assert type(Losses().lost("stage a", KILLED, alone=False)) is Unavailable


def test_a_run_that_was_alone_in_a_runner_without_memory_needs_too_much() -> None:
    losses = Losses()
    for _ in range(2 * MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", FULL, alone=True)) is InfrastructureError


def test_runs_that_shared_a_runner_without_memory_get_one_of_their_own() -> None:
    losses = Losses()
    assert type(losses.lost("stage a", FULL, alone=False)) is Unavailable
    assert losses.apart("stage a")
    assert not losses.apart("stage b")
    losses.survived("stage a")
    assert not losses.apart("stage a")


def test_a_run_that_loses_one_runner_after_the_other_is_set_apart_and_then_parks() -> None:
    losses = Losses()
    for count in range(1, MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable
        assert losses.apart("stage a") == (count >= DEDICATED_RUNNER_AFTER)
    said = losses.lost("stage a", KILLED, alone=True)
    assert isinstance(said, NeedsOperator)
    assert said.why == "10 Spark runners in a row were lost while they ran this; the last time: the runner was killed"
    assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable, "a person's retry begins anew"


def test_an_answer_ends_the_row() -> None:
    losses = Losses()
    for _ in range(3 * MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable
        losses.survived("stage a")
