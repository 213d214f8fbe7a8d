"""Random sagas in a random world, judged from outside by the rules of the contract.

``SAGA_EXAMPLES=20000`` runs more than the default; a failure prints the three tapes that repeat it.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .plans import TapePlan
from .runner import Runner
from .strategies import make_case
from .tape import Tape

EXAMPLES = int(os.environ.get("SAGA_EXAMPLES", "2000"))
SEEN: Counter[str] = Counter()

MUST_BE_SEEN = {
    "COMPLETED", "COMPENSATED", "PARKED", "RESIDUE", "COMMITTED", "COMPENSATING", "crash", "continued", "undone later",
    "cancel accepted", "decided retry do", "decided skip do", "decided done do", "decided retry undo",
    "decided skip undo", "decided done undo", "decided retry confirm", "late attempt refused",
}  # fmt: skip


def live(shape: bytes, faults: bytes, order: bytes) -> Runner:
    """One whole life; raises Violation when a rule is broken."""
    case = make_case(Tape(shape))
    runner = Runner(case.definition, case.input, TapePlan(Tape(faults), Tape(order)), generation=case.generation)
    runner.run()
    return runner


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    shape=st.binary(min_size=96, max_size=96),
    faults=st.binary(min_size=96, max_size=96),
    order=st.binary(min_size=256, max_size=256),
)
def test_every_life_keeps_every_rule(shape: bytes, faults: bytes, order: bytes) -> None:
    runner = live(shape, faults, order)
    SEEN.update(runner.seen)
    if runner.world.lates:
        SEEN["late attempt refused"] += 1


def test_the_hard_states_were_reached() -> None:
    """Without this a world that had become too kind would pass unnoticed."""
    assert SEEN, "run the whole file: this test counts what the one above has seen"
    missing = {name for name in MUST_BE_SEEN if SEEN[name] < EXAMPLES // 500}
    assert not missing, f"never or hardly ever reached: {sorted(missing)}"
