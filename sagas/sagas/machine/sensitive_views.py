"""Masks the `x-sensitive` values of the input in everything that a view says about its saga."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from sagas.definition.sensitivity import SensitiveMask
from sagas.protocol.saga_view import (
    ChildView,
    DecisionView,
    ErrorView,
    NotificationView,
    OperationView,
    ParkedView,
    ReasonView,
    SagaView,
    StepView,
)

_Failure = TypeVar("_Failure", ErrorView, ReasonView)


def without_sensitive_values(view: SagaView, sensitive: frozenset[str]) -> SagaView:
    """The view with `•••` in place of these values, wherever its saga, a participant or an operator repeats them.

    What an operator needs in order to repair rows stays: their keys and columns, and the SQL that restores them.
    """
    if not sensitive:
        return view
    mask = SensitiveMask(sensitive)
    return replace(
        view,
        reason=view.reason and _failure(mask, view.reason),
        output=mask.value(view.output),
        steps=tuple(_step(mask, step) for step in view.steps),
        children=tuple(_child(mask, child) for child in view.children),
        parked=tuple(_parked(mask, parked) for parked in view.parked),
        operator=tuple(_decision(mask, decision) for decision in view.operator),
        paused=view.paused and replace(view.paused, reason=view.paused.reason and mask.text(view.paused.reason)),
        notifications=tuple(_notification(mask, notification) for notification in view.notifications),
    )


def _failure(mask: SensitiveMask, failure: _Failure) -> _Failure:
    return replace(failure, message=mask.value(failure.message), details=mask.value(failure.details))


def _step(mask: SensitiveMask, step: StepView) -> StepView:
    return replace(
        step,
        result=mask.value(step.result),
        error=step.error and _failure(mask, step.error),
        arguments=mask.value(step.arguments),
        compensation=step.compensation and _operation(mask, step.compensation),
        confirmation=step.confirmation and _operation(mask, step.confirmation),
    )


def _operation(mask: SensitiveMask, operation: OperationView) -> OperationView:
    error = operation.error and _failure(mask, operation.error)
    return replace(operation, error=error, arguments=mask.value(operation.arguments))


def _child(mask: SensitiveMask, child: ChildView) -> ChildView:
    waits = child.waits and tuple(replace(wait, why=mask.text(wait.why)) for wait in child.waits)
    return replace(child, waits=waits)


def _parked(mask: SensitiveMask, parked: ParkedView) -> ParkedView:
    return replace(parked, why=mask.text(parked.why))


def _decision(mask: SensitiveMask, decision: DecisionView) -> DecisionView:
    reason, evidence = mask.text(decision.reason), mask.value(decision.evidence)
    error = decision.error and mask.text(decision.error)
    return replace(decision, reason=reason, evidence=evidence, arguments=mask.value(decision.arguments), error=error)


def _notification(mask: SensitiveMask, notification: NotificationView) -> NotificationView:
    return replace(notification, error=notification.error and _failure(mask, notification.error))
