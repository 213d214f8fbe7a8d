"""The oracle detects each of these mutations of the machine within a few hundred random runs.

Every mutation removes one rule from the running machine by replacing one small function. A crash of the mutated
machine does not count: the oracle has to report which rule is broken.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.engine.machine_properties.mutations.effect_mutations import EFFECTS
from tests.unit.engine.machine_properties.mutations.outcome_mutations import WORDS
from tests.unit.engine.machine_properties.seeds import broken_rules
from tests.unit.engine.machine_properties.test_properties import simulate

MUTATIONS = {**EFFECTS, **WORDS}
RUNS = 1_500


START = {
    "a pivot is given up by its last word": 280,
    "a refused child is done": 170,
    "judge by the last attempt": 270,
    "give up for trouble of the infrastructure": 2_090,
    "no arguments where an expression fails": 4,
    "a person may decide at any time": 475,
    "every participant remembers its rejections": 5_060,
    "believe a probe before its attempts are old": 130,
    "a confirm that cannot be asked counts as one": 335,
    "what a probe cannot tell is absent": 200,
    "the last signal counts": 70,
    "a refused undo of a child is one": 320,
    "other arguments for what may have happened": 320,
    "a retry skips the condition": 465,
    "done without asking the guard": 140,
    "signals are not stored": 650,
    "a continued item keeps its result": 100,
    "late is done": 50,
    "a won seal stays unknown": 2_150,
}
"""The first run of a mutation, to save time: it needs a rare coincidence, which occurs shortly after this one."""


def run_seed(seed: int) -> None:
    source = random.Random(seed)
    simulate(source.randbytes(160), source.randbytes(96), source.randbytes(256))


def test_the_unmodified_machine_has_no_violations() -> None:
    assert list(broken_rules(run_seed, range(50))) == []


@pytest.mark.sampled(keep=15)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_machine_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, rules = MUTATIONS[name]
    mutate(monkeypatch)
    start = START.get(name, 0)
    broken = next(broken_rules(run_seed, range(start, start + RUNS)), None)
    assert broken, "the oracle found no violation"
    assert broken in rules, f"found, but called {broken}"
