"""Every single fault in every step of a dozen typical sagas, with a cancel or the deadline at every moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sagas.definition.model import Definition

from .plans import OneFault
from .runner import Runner
from .typical import INPUT, TYPICAL
from .world import Fate

DO_FAULTS: tuple[Fate, ...] = ("rejected", "failed", "failed_final", "lost_before", "lost_after", "zombie")
UNDO_FAULTS: tuple[Fate, ...] = ("rejected", "failed", "lost_after", "lost_before", "infrastructure", "zombie")
CONFIRM_FAULTS: tuple[Fate, ...] = ("rejected", "lost_after", "infrastructure", "zombie")
SAGAS = [pytest.param(definition, id=name) for name, definition in TYPICAL.items()]


class Fault(NamedTuple):
    """What goes wrong: the first ``times`` attempts of one operation of one step."""

    step: str | None = None
    op: str = "do"
    fault: Fate = "ok"
    times: int = 0


def faults(definition: Definition) -> list[Fault]:
    """Every single fault; the first is none at all."""
    found = [Fault()]
    for step in definition.steps:
        found += [Fault(step.id, "do", fault, times) for fault in DO_FAULTS for times in (1, 2)]
        if step.confirm is not None:
            found += [Fault(step.id, "confirm", fault, 1) for fault in CONFIRM_FAULTS]
        if step.do.guarded:
            found.append(Fault(step.id, "seal", "lost_after", 1))
    return found


def live(definition: Definition, plan: OneFault) -> Runner:
    runner = Runner(definition, INPUT, plan)
    runner.run()
    return runner


def at_every_moment(definition: Definition, moment: Callable[[int], dict[str, Any]]) -> None:
    """Each fault, with something more at each event of the life.

    A fault twice comes first: when it struck less than twice, the life with that fault once would be the same.
    """
    same: dict[tuple[str | None, str, Fate, int], int] = {}
    for step, op, fault, times in sorted(faults(definition), key=lambda one: -one.times):
        at, events = 0, 1
        while at <= events:
            place = (step, op, fault, at)
            if times == 1 and place in same:
                events = same[place]
            else:
                plan = OneFault(step, op, fault, times, **moment(at))
                events = live(definition, plan).events
                if times == 2 and plan.times > 0:
                    same[place] = events
            at += 1


@pytest.mark.parametrize("definition", SAGAS)
def test_a_cancel_at_every_moment(definition: Definition) -> None:
    at_every_moment(definition, lambda at: {"cancel_at": at, "crash": at % 3 == 0})


@pytest.mark.parametrize("definition", [p for p in SAGAS if p.values[0].deadline is not None])  # pyright: ignore
def test_the_deadline_at_every_moment(definition: Definition) -> None:
    at_every_moment(definition, lambda at: {"deadline_at": at})


@pytest.mark.parametrize("definition", SAGAS)
def test_every_fault_of_a_compensation(definition: Definition) -> None:
    """The last effectful step is cancelled away; each compensation on the way back fails in every manner."""
    for step in definition.steps:
        for fault in UNDO_FAULTS:
            for at in range(1, 6):
                for times, wished in ((1, "retry"), (20, "retry"), (20, "skip"), (20, "done")):
                    plan = OneFault(step.id, "undo", fault, times, cancel_at=at, wished=wished)
                    live(definition, plan)
                    if plan.times == times:
                        break  # nothing of this step was undone: no other fault would strike either


@pytest.mark.parametrize("definition", SAGAS)
@pytest.mark.parametrize("wished", ["retry", "skip", "done", "compensate"])
def test_every_decision_about_a_stuck_step(definition: Definition, wished: str) -> None:
    for step, op, fault, times in faults(definition):
        live(definition, OneFault(step, op, fault, times * 10, wished=wished))
