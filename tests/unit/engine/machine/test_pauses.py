"""Long evaluations are spread over several workflow tasks; the saga takes the same course."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine
from sagas.machine.task_budget import PAUSE
from sagas.protocol.messages import Call, CallEnded, CancelRequested, Command, Finish, Started, StartTimer, TimerFired
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import saga, step

NUMBERS = list(range(300))
HEAVY = "${{ input.n.all(a, input.n.all(b, a >= 0)) }}"
CHECK = "input.n.exists(a, input.n.exists(b, b < 0)) || item >= 0"


def run(
    definition: Any, input: Any, *, pauses: bool = True, cancel_at: int | None = None
) -> tuple[list[str], int, float]:
    """The calls in order with the final state, the number of pauses, and the longest task in seconds."""
    machine = Machine(definition, input, "s-1")
    log: list[str] = []
    tasks, paused, longest, now = 0, 0, 0.0, 1.0
    events: list[Any] = [Started(at=now)]
    while events:
        event = events.pop(0)
        tasks += 1
        if pauses:
            machine.begin_task(WorkMeter())
        before = time.thread_time()
        commands: list[Command] = machine.next(event)
        longest = max(longest, time.thread_time() - before)
        for command in commands:
            match command:
                case Call(id=id):
                    log.append(id)
                    events.append(CallEnded(id=id, outcome=Outcome.done({"ok": True}), at=now, attempts=1))
                case StartTimer(id=id) if id == PAUSE:
                    assert pauses
                    paused += 1
                    assert machine.paused
                    events.append(TimerFired(id=id, at=now))
                case Finish(state=state):
                    log.append(state)
        if cancel_at == tasks:
            events.insert(0, CancelRequested(at=now))
    assert machine.finished
    assert not machine.paused
    return log, paused, longest


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    "definition",
    [
        saga(step("a", uses="require", for_each="${{ input.n }}", with_={"that": f"${{{{ {CHECK} }}}}"}), step("b")),
        saga(step("a", for_each="${{ input.n }}", max_parallel=200, with_={"x": HEAVY}), step("b")),
        saga(*(step(f"s{n}", if_=HEAVY.strip("${} ")) for n in range(20)), line=False),
    ],
    ids=["a wide for_each of the engine", "many items at once", "many steps at once"],
)
def test_heavy_evaluations_are_spread_over_tasks(definition: Any) -> None:
    whole, _, _ = run(definition, {"n": NUMBERS[:100]}, pauses=False)
    spread, paused, longest = run(definition, {"n": NUMBERS[:100]})
    assert sorted(spread) == sorted(whole)
    assert spread[-1] == whole[-1] == "COMPLETED"
    assert paused
    assert longest < 8


def test_a_cancel_between_two_tasks_is_carried_out() -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=200, with_={"x": HEAVY}), step("b"))
    log, paused, _ = run(definition, {"n": NUMBERS[:100]}, cancel_at=1)
    assert log[-1] == "COMPENSATED"
    assert paused


def test_light_evaluations_are_not_spread() -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=200, with_={"x": "${{ item + 1 }}"}))
    log, paused, _ = run(definition, {"n": NUMBERS})
    assert (len(log), paused) == (301, 0)


def test_work_spreads_evaluations() -> None:
    text = {"n": NUMBERS, "text": "a" * 20_000, "part": "a" * 97 + "b"}
    search = {"x": "${{ input.text.contains(input.part) }}"}
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=200, with_=search))
    log, paused, _ = run(definition, text)
    assert len(log) == 301
    assert paused > 0
