"""What the engine adds to a `spark` step: publish after the commit point, discard or take back when going backward."""

from __future__ import annotations

from dataclasses import replace

from sagas.builtins import BUILTINS
from sagas.builtins_spark import DISCARD, PUBLISH, PUBLISH_TIMEOUT, UNPUBLISH
from sagas.definition.model import Compensation, Operation, Retry


def is_spark_job(uses: str) -> bool:
    """True for the actions that a Spark runner performs."""
    return uses in BUILTINS and BUILTINS[uses].where == "spark"


def spark_operations(do: Operation, after_commit: bool) -> tuple[Compensation | None, Operation]:
    """The `compensate` (none where nothing leads backward) and the `confirm` of a `spark` step.

    All of them get the frozen arguments of the forward call, keep their rows beside the step's own, and beat as often:
    the attempt of a dead worker is repeated soon.
    """

    def operation(uses: str) -> Operation:
        return replace(do, uses=uses, with_=None, timeout=PUBLISH_TIMEOUT, retry=Retry(), rejects=False)

    compensation = None if after_commit else Compensation((operation(DISCARD),), operation(UNPUBLISH))
    return compensation, operation(PUBLISH)
