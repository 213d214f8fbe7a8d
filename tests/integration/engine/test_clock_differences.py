"""Workers whose clock differs from the server's by more than an attempt may take, and attempts that arrive too late."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import Client as Temporal

from saga_activities.server_clock import ServerClock
from saga_workers.temporal.server_clock import measure_server_clock
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import Environment, row, run_saga

SAGA = """
saga: NAME
steps:
  - {id: a, uses: book, compensate: unbook, timeout: 5s, retry: {max_attempts: 2, initial_interval: 20ms}}
  - {id: no, uses: require, with: {that: false, message: "no"}}
"""


def shift(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clock of this process, and of the worker in it, differ from the server's."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + seconds)


@pytest.mark.parametrize("ahead", [120.0, -120.0])
async def test_a_worker_with_another_clock_runs_steps_and_undoes_them(
    env: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    shift(monkeypatch, ahead)
    name = f"clock-{'ahead' if ahead > 0 else 'behind'}"
    with caplog.at_level(logging.WARNING, "saga.clock"):
        async with env.serving(SAGA.replace("NAME", name)) as client:
            story = await run_saga(client, name)
    step = row(story, "a")
    assert (story["state"], step["outcome"], step["attempts"]) == ("COMPENSATED", "done", 1)
    [warning] = [record.getMessage() for record in caplog.records if record.name == "saga.clock"]
    assert warning.startswith("clock of this machine is 1")
    assert f"s {'ahead of' if ahead > 0 else 'behind'} that of the Temporal server" in warning


async def test_the_clocks_are_compared_as_exactly_as_a_limit_needs(
    temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Temporal.connect(temporal.address)
    for ahead in (0.0, 120.0):
        with monkeypatch.context() as patch:
            shift(patch, ahead)
            measured = await measure_server_clock(client)
        assert measured == pytest.approx(-ahead, abs=0.9)


def arrived(seconds_ago: float, *, local: bool = False) -> Any:
    started = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return SimpleNamespace(started_time=started, is_local=local)


async def test_an_attempt_that_was_kept_from_a_frozen_worker_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[float] = []

    async def same() -> float | None:
        measured.append(0.01)
        return measured[-1]

    clock = ServerClock(same)
    assert await clock.deadline(arrived(0), 5) > time.time() + 4
    assert measured == []
    for _ in range(2):
        assert await clock.deadline(arrived(60), 5) < time.time() - 50
    assert len(measured) == 1


async def test_a_comparison_without_an_answer_changes_nothing() -> None:
    async def none() -> float | None:
        return None

    assert await ServerClock(none).deadline(arrived(60), 5) < time.time() - 50


async def test_a_local_attempt_begins_by_the_clock_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def behind() -> float | None:
        return -120.0

    clock = ServerClock(behind)
    assert await clock.deadline(arrived(120), 5) > time.time() + 4
    assert await clock.deadline(arrived(0, local=True), 5) < time.time() + 6
