"""Random sagas in a random environment, checked from outside by the rules of the contract.

A failure prints the three choice sequences that repeat it.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenarios import RandomScenario
from tests.unit.engine.machine_properties.inputs.strategies import make_case
from tests.unit.engine.machine_properties.runner import Runner

EXAMPLES = scaled(400, 20_000)
SEEN: Counter[str] = Counter()

MUST_BE_SEEN = {
    "COMPLETED", "COMPENSATED", "PARKED", "RESIDUE", "COMMITTED", "COMPENSATING", "crash", "continued", "undone later",
    "cancel accepted", "late",
    # operator decisions
    "decided retry do", "decided skip do", "decided done do", "decided compensate do", "decided retry undo",
    "decided skip undo", "decided done undo", "decided retry confirm", "decided done confirm", "decided retry output",
    "decided done output", "decided retry late", "decided retry of what is not parked",
    "corrected arguments do", "corrected arguments undo", "corrected arguments confirm",
    "corrected definition do", "corrected definition undo", "corrected definition confirm",
    # mistakes in the definition, by the position of the expression
    "definition with", "definition if", "definition for_each", "definition compensate", "definition confirm",
    "definition output",
    # participants without a guard, and their probes
    "keyed done", "keyed rejected", "keyed failed", "keyed unknown", "keyless done", "keyless failed",
    "keyless unknown", "foreign keyed unknown", "foreign keyless unknown",
    "probe read by expressions: here", "probe read by expressions: gone",
    # nested sagas, waits, items
    "child COMPLETED", "child COMPENSATED", "child RESIDUE", "child TERMINATED", "child REFUSED", "child parked",
    "signal in time", "signal in time that refuses", "signal early", "signal again", "wait over, for",
    "wait over, until", "wait over, continue", "wait over, reject", "wait over, park",
    "require DONE", "require REJECTED", "require PARKED", "continued item",
    "pass DONE", "pass COMPENSATED", "finish DONE", "finished early",
    "undone without an effect",
    # notifications
    "told completed", "told compensated", "told parked", "told residue", "told overdue", "told nothing",
}  # fmt: skip
"""Each at least once in 700 runs."""

RARELY_SEEN = {
    "cancel recorded", "late attempt refused", "decided skip late", "decided done late",
    "decided done of what is not parked", "decided skip confirm", "corrected arguments after unknown",
    "definition probe", "definition fairness_key", "keyless rejected", "probe read by expressions: pending",
    "undo of a child parked", "pass PARKED", "foreign keyed rejected",
}  # fmt: skip
"""Each at least once in 2,000 runs."""


def choices(count: int) -> st.SearchStrategy[bytes]:
    """So many choices: half as Hypothesis likes bytes, which it can shrink, half uniformly at random."""
    uniform = st.integers(0, 2**64 - 1).map(lambda seed: Random(seed).randbytes(count))
    return st.binary(min_size=count, max_size=count) | uniform


def simulate(shape: bytes, faults: bytes, order: bytes) -> Runner:
    """One whole run; raises Violation when a rule is broken."""
    case = make_case(ChoiceSequence(shape))
    scenario = RandomScenario(ChoiceSequence(faults), ChoiceSequence(order))
    runner = Runner(case.definition, case.input, scenario, generation=case.generation, repaired=case.repaired)
    runner.run()
    return runner


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(shape=choices(160), faults=choices(96), order=choices(256))
def test_every_run_satisfies_every_rule(shape: bytes, faults: bytes, order: bytes) -> None:
    runner = simulate(shape, faults, order)
    SEEN.update(runner.seen)
    if runner.env.lates:
        SEEN["late attempt refused"] += 1


def test_rare_states_are_covered() -> None:
    """Without this, an environment without faults would pass unnoticed."""
    assert SEEN, "run the whole file: this test counts what the one above has seen"
    rare = RARELY_SEEN - SEEN.keys() if EXAMPLES >= 2_000 else set()
    missing = {name for name in MUST_BE_SEEN if SEEN[name] < EXAMPLES // 700} | rare
    assert not missing, f"never or hardly ever reached: {sorted(missing)}"
