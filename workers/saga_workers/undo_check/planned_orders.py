"""The orders of undos of a saga: the faults after which a simulated run ends COMPENSATED."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sagas.definition.model import Definition
from sagas.simulation import Environment, Script, SimulatedRun, simulate
from sagas.simulation.failure_points import PlannedFault, planned_faults

SAGA_UNDO = "saga undo"
"""The fault of the order in which the saga completes and is then undone by `saga undo`."""

_COMPENSATION_FAILS = "compensation fails"


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """A fault, and the simulated run with it."""

    fault: PlannedFault
    simulated: SimulatedRun

    @property
    def undone(self) -> tuple[str, ...]:
        return tuple(self.simulated.undone)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for orders of the same undos that are made by the same actions."""
        fault = self.fault
        if fault.fault == _COMPENSATION_FAILS:
            return self.undone, fault.step, str(fault.script.outcomes)
        return self.undone, fault.fault == SAGA_UNDO


def planned_orders(
    definition: Definition,
    input: Any,
    script: Script,
    usual: SimulatedRun,
    results: Mapping[str, Any],
    refused: Mapping[str, str],
    environment: Environment,
) -> list[OrderPlan]:
    """The orders, the shortest first.

    ``usual``: the run without a fault. ``results``: those that its steps had; ``refused``: the outcomes of the steps
    that had no effect.
    """
    planned = []
    for fault in _faults(definition, script, usual):
        script_of_fault = fault.script
        as_before = replace(
            script_of_fault,
            results={**results, **script_of_fault.results},
            outcomes={**refused, **script_of_fault.outcomes},
        )
        run = simulate(fault.definition, input, as_before, environment)
        if run.state == "COMPENSATED":
            planned.append(OrderPlan(fault, run))
    return sorted(planned, key=lambda order: len(order.undone))


def choose(planned: Sequence[OrderPlan], limit: int) -> list[OrderPlan]:
    """At most ``limit`` of the orders: one of each kind first."""
    seen: set[tuple[Any, ...]] = set()
    firsts, others = [], []
    for number, order in enumerate(planned):
        (others if order.kind in seen else firsts).append(number)
        seen.add(order.kind)
    chosen = set([*firsts, *others][:limit])
    return [order for number, order in enumerate(planned) if number in chosen]


def _faults(definition: Definition, script: Script, usual: SimulatedRun) -> Iterator[PlannedFault]:
    """The faults of `saga simulate`, one more for each further alternate of a compensation, and `saga undo`."""
    last = definition.steps[-1].id
    for fault in planned_faults(definition, script, usual):
        yield fault
        last = fault.step
        if fault.fault == _COMPENSATION_FAILS:
            yield from _with_further_alternates(definition, fault)
    yield PlannedFault(last, SAGA_UNDO, definition, replace(script, undo_at_end=True))


def _with_further_alternates(definition: Definition, fault: PlannedFault) -> Iterator[PlannedFault]:
    compensation = definition.step(fault.step.partition("#")[0]).compensate
    for failing in range(2, len(compensation.alternates) if compensation is not None else 0):
        outcomes = {f"{fault.step}/undo": ["rejected"] * failing}
        yield replace(fault, script=fault.script.with_outcomes(outcomes))
