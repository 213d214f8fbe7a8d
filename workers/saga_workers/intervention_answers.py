"""Interventions with the answers that `saga cancel -o json` and its siblings print, and `saga serve` sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saga_workers import interventions
from saga_workers.location.locator import Locator

_IN_FLIGHT = ("RUNNING", "COMPENSATING", "CONFIRMING")


async def cancel(
    locator: Locator,
    saga_id: str,
    *,
    reason: str,
    who: str | None,
    without_answer: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Raises like :func:`interventions.cancel`, which also explains ``without_answer``."""
    result = await interventions.cancel(locator, saga_id, reason=reason, who=who, without_answer=without_answer)
    return {"id": saga_id, "response": result.answer, "note": result.note}


async def pause(locator: Locator, saga_id: str, *, reason: str, who: str | None) -> dict[str, Any]:
    """Raises like :func:`interventions.pause`. ``note`` says whose pause it is: an earlier one stays as it is."""
    view = await interventions.pause(locator, saga_id, reason=reason, who=who)
    held = list(view.paused.held) if view.paused else []
    in_flight = [step.id for step in view.steps if step.state in _IN_FLIGHT and step.id not in held]
    omitted = (view.steps_omitted or {}).items()
    others = sum(count for step_and_state, count in omitted if step_and_state.endswith(_IN_FLIGHT))
    names = [*in_flight, *([f"{others} others"] if others else [])]
    flights = f"in flight: {', '.join(names)}" if names else "nothing is in flight"
    note = f"{view.pause_text or 'paused'}; {flights}"
    return {"id": saga_id, "response": "paused", "held": held, "in_flight": in_flight, "note": note}


async def resume(locator: Locator, saga_id: str, *, reason: str, who: str | None) -> dict[str, Any]:
    """Raises like :func:`interventions.resume`."""
    view = await interventions.resume(locator, saga_id, reason=reason, who=who)
    return {"id": saga_id, "response": "resumed", "state": view.state}


async def signal(
    locator: Locator, saga_id: str, name: str, data: Any, *, who: str | None, reject: str | None
) -> dict[str, Any]:
    """Raises like :func:`interventions.signal`. ``note`` says if nobody knows whether the saga takes the signal."""
    note = await interventions.signal(locator, saga_id, name, data, who=who, reject=reject)
    answer = {"id": saga_id, "signal": name, "response": "sent" if reject is None else "rejected"}
    return answer if note is None else {**answer, "note": note}


async def undo(locator: Locator, saga_id: str, *, reason: str, who: str, task_queue: str) -> dict[str, Any]:
    """Raises like :func:`interventions.undo`. It goes on after the answer."""
    await interventions.undo(locator, saga_id, reason=reason, who=who, task_queue=task_queue)
    return {"id": saga_id, "response": "undoing"}
