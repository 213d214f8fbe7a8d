"""Half messages: what the engine adds to a step whose events wait for the commit point.

The guard's transaction of `confirm` releases them and that of `undo` drops them, whatever action runs there. So a step
that has neither gets one that does nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sagas.builtins_messaging import DROP, EMITTERS, RELEASE, events_of, is_held
from sagas.definition.model import Compensation, Kind, Operation, Retry

if TYPE_CHECKING:
    from sagas.actions import Action

BRINGS_NOTHING = (RELEASE, DROP)


def holding(do: Operation, arguments: Mapping[str, Any], action: Action | None, kind: Kind) -> Operation:
    """The forward operation with its fact ``holds``: only before the commit point there is something to wait for."""
    declared = action.holds if action is not None else any(map(is_held, events_of(do.uses, arguments)))
    return replace(do, holds=kind == "compensatable") if declared else do


def beside(do: Operation, uses: str) -> Operation:
    """An operation without an action of its own, in the database of the forward one."""
    return replace(do, uses=uses, with_={}, heartbeat=None, retry=Retry(), rejects=False, holds=None)


def held_operations(
    do: Operation, arguments: Mapping[str, Any], compensate: Compensation | None, confirm: Operation | None
) -> tuple[Compensation | None, Operation | None]:
    """The `compensate` and the `confirm` of a step, with what its held events need.

    Released is no obstacle for the author's own compensation: what has been published stays, the rest can be undone.
    """
    if not do.holds:
        return compensate, confirm
    events = events_of(do.uses, arguments) if do.uses in EMITTERS else []
    if compensate is None and events and all(map(is_held, events)):
        compensate = Compensation((beside(do, DROP),))
    if confirm is not None:
        return compensate, confirm
    if compensate is not None and compensate.confirmed is None and compensate.alternates[0].uses != DROP:
        compensate = replace(compensate, confirmed=compensate.alternates[0])
    return compensate, beside(do, RELEASE)
