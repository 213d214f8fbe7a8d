"""Random sagas and failures: a saga in a bulk workflow does what it does on its own, and tells the same story."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from sagas.definition.model import Definition, StepDefinition
from sagas.machine.machine import Machine
from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.bulk_runner import batchable
from tests.unit.engine.machine_properties.differential import Alone, Ended, Together, World, ended
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.strategies import Case, make_case
from tests.unit.engine.machine_properties.test_bulk_properties import MUTATIONS

SAGAS = ("s-1", "s-2", "s-3", "s-4")
DETECTED = ("the neighbour's outcome", "each chunk begins to count", "unknown ends the call as failed")


def random_case(source: random.Random) -> Case:
    """A saga most of whose steps can be shared, without limits in time: how long it takes must not decide."""
    case = make_case(ChoiceSequence(source.randbytes(160)), savepoints=ChoiceSequence(source.randbytes(64)))
    definition = batchable(case.definition, ChoiceSequence(source.randbytes(64)))
    steps = [
        replace(step, do=replace(step.do, retry=replace(step.do.retry, give_up_after=None)))
        for step in definition.steps
    ]
    return replace(case, definition=replace(definition, steps=tuple(steps), deadline=None, warn_after=None))


def compare(seed: int) -> Counter[str]:
    """One random saga, several times in a bulk workflow and alone; returns what was seen."""
    source = random.Random(seed)
    case, percent = random_case(source), source.choice((0, 15, 35, 60))
    cancels = source.random() < 0.15
    together = Together(case.definition, SAGAS, case.input, str(seed), percent, source, cancels=cancels)
    together.run()
    seen: Counter[str] = Counter()
    for id in SAGAS:
        kept = together.kept[id]
        if kept.repeats:
            seen["cancelled between two attempts"] += 1  # which Temporal tells in another way
            continue
        world = World(case.definition, id, str(seed), percent)
        alone = Alone(Machine(case.definition, case.input, id), world)
        alone.follow(kept.order)
        if kept.left is not None:
            alone.go_on()
        single = ended(alone.machine, world, alone.events, alone.now)
        assert_same(together.ended(id), single, f"seed {seed}, {id}, left because {kept.why_left}")
        seen[f"{'left' if kept.left else 'stayed'} {single.story['state']}"] += 1
        seen["left between two attempts"] += kept.between_attempts
        seen.update(f"step {row['state']}" for row in single.story["steps"])
        seen["savepoint repeated"] += any(row["runs"] > 1 for row in single.story.get("savepoints") or ())
    return seen


def assert_same(first: Ended, second: Ended, where: str) -> None:
    assert first.events == second.events, where
    assert first.calls == second.calls, where
    assert first.rows == second.rows, where
    assert first.effects == second.effects, where
    assert first.story == second.story, where


MUST_BE_SEEN = {
    "stayed COMPLETED", "stayed COMPENSATED", "left COMPLETED", "left COMPENSATED", "left PARKED", "savepoint repeated",
    "left between two attempts",
    "step CONFIRMED", "step REJECTED", "step FAILED", "step SKIPPED", "step NOTHING_TO_UNDO", "step COMPENSATED",
}  # fmt: skip


def test_bulk_execution_equals_single_execution() -> None:
    seeds = range(scaled(60, 6_000))
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen.update(compare(seed))
    assert not {event for event in MUST_BE_SEEN if not seen[event]}
    assert seen["cancelled between two attempts"] < len(seeds) * len(SAGAS) / 20


def in_line(definition: Definition) -> Definition:
    """The definition with its steps in a line, so that a saga never has two calls whose order could matter."""
    steps: list[StepDefinition] = []
    for step in definition.steps:
        needs = (steps[-1].id,) if steps else ()
        steps.append(replace(step, needs=needs, max_parallel=1))
    return replace(definition, steps=tuple(steps))


def test_the_order_of_chunks_changes_nothing() -> None:
    """Nor does their size: what becomes of a saga does not depend on its neighbours."""
    for seed in range(scaled(12, 1_500)):
        source = random.Random(seed)
        case, percent = random_case(source), source.choice((15, 35, 60))
        definition = in_line(case.definition)
        executions = [
            Together(definition, SAGAS, case.input, str(seed), percent, random.Random(order)) for order in range(3)
        ]
        for execution in executions:
            execution.run()
        for id in SAGAS:
            for other in executions[1:]:
                assert_same(executions[0].ended(id), other.ended(id), f"seed {seed}, {id}")


@pytest.mark.parametrize("name", DETECTED)
def test_a_mutated_bulk_machine_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, _ = MUTATIONS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        Counter(kind for seed in range(100) for kind in compare(seed))
