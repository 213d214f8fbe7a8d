"""Every single fault, with a cancel or the deadline at some events; `make test-long` takes every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sagas.definition.model import Definition
from tests.unit.engine.machine_properties.environment.environment import Fate
from tests.unit.engine.machine_properties.inputs.scenarios import SingleFaultScenario
from tests.unit.engine.machine_properties.inputs.single_faults import SAGAS, faults, simulate

FAULTS = pytest.mark.parametrize(
    ("times", "stride"),
    [
        pytest.param((1,), 17, id="single faults"),
        pytest.param((1, 2), 1, id="double faults, too", marks=pytest.mark.slow),
    ],
)


def interrupt(
    definition: Definition, moment: Callable[[int], dict[str, Any]], numbers: tuple[int, ...], stride: int
) -> None:
    """Each fault that occurs so many times, with an interruption at each event of the run, or at some of them.

    Double faults come first: when the fault occurred less than twice, the run with a single one would be the same.
    """
    same: dict[tuple[str | None, str, Fate, int], int] = {}
    chosen = [fault for fault in faults(definition) if fault.times in (0, *numbers)]
    for number, (step, op, fault, times) in enumerate(sorted(chosen, key=lambda interruption: -interruption.times)):
        at, events = number % stride, stride
        while at <= events:
            place = (step, op, fault, at)
            if times == 1 and place in same:
                events = same[place]
            else:
                scenario = SingleFaultScenario(step, op, fault, times, **moment(at))
                events = simulate(definition, scenario).events
                if times == 2 and scenario.times > 0:
                    same[place] = events
            at += stride


@FAULTS
@pytest.mark.parametrize("definition", SAGAS)
def test_a_cancel_at_an_event(definition: Definition, times: tuple[int, ...], stride: int) -> None:
    interrupt(definition, lambda at: {"cancel_at": at, "crash": at % 3 == 0}, times, stride)


@FAULTS
@pytest.mark.parametrize("definition", [p for p in SAGAS if p.values[0].deadline is not None])  # pyright: ignore
def test_the_deadline_at_an_event(definition: Definition, times: tuple[int, ...], stride: int) -> None:
    interrupt(definition, lambda at: {"deadline_at": at}, times, stride)
