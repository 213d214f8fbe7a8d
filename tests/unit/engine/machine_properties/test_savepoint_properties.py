"""Random sagas with savepoints, by the same rules and rule 18; and mutations of the machine that break it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from sagas.machine.undo import savepoints
from sagas.protocol.messages import Call
from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.environment.environment import Fate
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenarios import RandomScenario
from tests.unit.engine.machine_properties.inputs.strategies import make_case
from tests.unit.engine.machine_properties.runner import Runner
from tests.unit.engine.machine_properties.seeds import broken_rules, valid_runs

RUNS = scaled(125, 5_000)


class RefusingScenario(RandomScenario):
    """Like any random scenario, and besides its faults participants refuse a third of the forward attempts."""

    refusals_left = 12

    def fate(self, call: Call, attempt: int) -> Fate:
        if call.op == "do" and self.refusals_left and self.faults.chance(33):
            self.refusals_left -= 1
            return "rejected"
        return super().fate(call, attempt)


def simulate(seed: int) -> Runner:
    """One whole run; raises Violation when a rule is broken."""
    source = random.Random(seed)
    case = make_case(ChoiceSequence(source.randbytes(160)), savepoints=ChoiceSequence(source.randbytes(64)))
    scenario = RefusingScenario(ChoiceSequence(source.randbytes(192)), ChoiceSequence(source.randbytes(384)))
    runner = Runner(case.definition, case.input, scenario, generation=case.generation, repaired=case.repaired)
    runner.run()
    return runner


def test_every_run_with_savepoints_satisfies_every_rule() -> None:
    seen: Counter[str] = Counter()
    for story in (run.story for run in valid_runs(simulate, range(RUNS))):
        for item in story.get("savepoints", ()):
            seen[story["state"]] += item["runs"] > 1
            seen["all attempts used"] += item["runs"] == item["attempts"] and story["state"] == "COMPENSATED"
    assert min(seen["COMPLETED"], seen["COMPENSATED"], seen["all attempts used"]) >= RUNS // 250, seen


def _never_give_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(savepoints, "give_up", lambda run: None)


def _no_limit(patch: pytest.MonkeyPatch) -> None:
    whole = savepoints.savepoint_for

    def unlimited(run: object, cause: object) -> str | None:
        counts = {id: record.repetitions for id, record in run.steps.items()}  # pyright: ignore
        for record in run.steps.values():  # pyright: ignore
            record.repetitions = 0
        savepoint = whole(run, cause)  # pyright: ignore
        for id, count in counts.items():
            run.steps[id].repetitions = count  # pyright: ignore
        return savepoint

    patch.setattr(savepoints, "savepoint_for", unlimited)


def _same_generation(patch: pytest.MonkeyPatch) -> None:
    whole = savepoints._reset_step

    def reset(run: object, id: str, followers: set[str]) -> None:
        before = max((entry.generation for entry in run.steps[id].entries), default=0)  # pyright: ignore
        whole(run, id, followers)  # pyright: ignore
        run.steps[id].generation = before  # pyright: ignore

    patch.setattr(savepoints, "_reset_step", reset)


def _undo_the_savepoint_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(savepoints, "rollback_covers", lambda run, step: True)


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a cancel does not go past a savepoint": _never_give_up,
    "more runs than attempts": _no_limit,
    "the same generation again": _same_generation,
    "the savepoint is undone, too": _undo_the_savepoint_too,
}

START = {"a cancel does not go past a savepoint": 140}
"""The first run of a mutation, to save time: it needs a rare coincidence, which occurs shortly after this one."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_savepoints_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    start = START.get(name, 0)
    assert next(broken_rules(simulate, range(start, start + 3_000)), None), "the oracle found no violation"
