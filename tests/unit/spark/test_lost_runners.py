"""The effect of a lost runner on the attempts of its tasks."""

from __future__ import annotations

from saga_spark.job_errors import RunnerLost
from saga_spark.runner.runner_client import DEDICATED_RUNNER_AFTER, MAX_CONSECUTIVE_LOSSES, RunnerLosses
from sagas.errors import InfrastructureError, NeedsOperator, Unavailable

KILLED = RunnerLost("the runner was killed")
FULL = RunnerLost("out of memory", memory=True)


def test_a_lost_runner_costs_no_attempt() -> None:
    assert type(RunnerLosses().lost("stage a", KILLED, alone=True)) is Unavailable
    assert type(RunnerLosses().lost("stage a", KILLED, alone=False)) is Unavailable


def test_a_task_alone_in_an_out_of_memory_runner_fails() -> None:
    losses = RunnerLosses()
    for _ in range(2 * MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", FULL, alone=True)) is InfrastructureError


def test_tasks_sharing_an_out_of_memory_runner_are_isolated() -> None:
    losses = RunnerLosses()
    assert type(losses.lost("stage a", FULL, alone=False)) is Unavailable
    assert losses.needs_dedicated_runner("stage a")
    assert not losses.needs_dedicated_runner("stage b")
    losses.survived("stage a")
    assert not losses.needs_dedicated_runner("stage a")


def test_a_task_that_loses_several_runners_is_isolated_and_then_parked() -> None:
    losses = RunnerLosses()
    for count in range(1, MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable
        assert losses.needs_dedicated_runner("stage a") == (count >= DEDICATED_RUNNER_AFTER)
    output = losses.lost("stage a", KILLED, alone=True)
    assert isinstance(output, NeedsOperator)
    assert (
        output.why
        == "10 consecutive Spark runners were lost while running this task; the last error: the runner was killed"
    )
    assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable, "a person's retry begins from zero"


def test_a_response_resets_the_loss_count() -> None:
    losses = RunnerLosses()
    for _ in range(3 * MAX_CONSECUTIVE_LOSSES):
        assert type(losses.lost("stage a", KILLED, alone=True)) is Unavailable
        losses.survived("stage a")
