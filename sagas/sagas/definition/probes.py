"""Which probes can answer at all, as far as the definition tells."""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.builtins_messaging import DROP, EMITTERS, RELEASE
from sagas.builtins_spark import SPARK
from sagas.definition.model import Probe

ANSWERS_BY_EXPRESSION = ("http", "sql", "reconcile")
"""Their result is never Done or Absent itself: only `done` and `absent` can say what it means."""


def cannot_be_asked(uses: str) -> bool:
    """True for a built-in action that nobody runs as a probe."""
    builtin = BUILTINS.get(uses)
    engine = builtin is not None and builtin.where == "engine"
    return engine or uses in (SPARK, DROP, RELEASE, *EMITTERS)


def can_answer(probe: Probe) -> bool:
    """False when every answer of this probe counts as unknown."""
    uses = probe.operation.uses
    if cannot_be_asked(uses):
        return False
    return uses not in ANSWERS_BY_EXPRESSION or probe.done is not None or probe.absent is not None
