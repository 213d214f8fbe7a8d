"""Hides the `x-sensitive` values of the input in everything that a view says about its saga."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from sagas.definition.sensitivity import Hiding
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


def without_sensitive_values(view: SagaView, hidden: frozenset[str]) -> SagaView:
    """The view with `•••` in place of these values, wherever its saga, a participant or an operator repeats them.

    What an operator needs in order to repair rows stays: their keys and columns, and the SQL that restores them.
    """
    if not hidden:
        return view
    hiding = Hiding(hidden)
    return replace(
        view,
        reason=view.reason and _failure(hiding, view.reason),
        output=hiding.value(view.output),
        steps=tuple(_step(hiding, step) for step in view.steps),
        children=tuple(_child(hiding, child) for child in view.children),
        parked=tuple(_parked(hiding, parked) for parked in view.parked),
        operator=tuple(_decision(hiding, decision) for decision in view.operator),
        notifications=tuple(_notification(hiding, notification) for notification in view.notifications),
    )


def _failure(hiding: Hiding, failure: _Failure) -> _Failure:
    return replace(failure, message=hiding.value(failure.message), details=hiding.value(failure.details))


def _step(hiding: Hiding, step: StepView) -> StepView:
    return replace(
        step,
        result=hiding.value(step.result),
        error=step.error and _failure(hiding, step.error),
        arguments=hiding.value(step.arguments),
        compensation=step.compensation and _operation(hiding, step.compensation),
        confirmation=step.confirmation and _operation(hiding, step.confirmation),
    )


def _operation(hiding: Hiding, operation: OperationView) -> OperationView:
    error = operation.error and _failure(hiding, operation.error)
    return replace(operation, error=error, arguments=hiding.value(operation.arguments))


def _child(hiding: Hiding, child: ChildView) -> ChildView:
    waits = child.waits and tuple(replace(wait, why=hiding.text(wait.why)) for wait in child.waits)
    return replace(child, waits=waits)


def _parked(hiding: Hiding, parked: ParkedView) -> ParkedView:
    return replace(parked, why=hiding.text(parked.why))


def _decision(hiding: Hiding, decision: DecisionView) -> DecisionView:
    reason, evidence = hiding.text(decision.reason), hiding.value(decision.evidence)
    return replace(decision, reason=reason, evidence=evidence, arguments=hiding.value(decision.arguments))


def _notification(hiding: Hiding, notification: NotificationView) -> NotificationView:
    return replace(notification, error=notification.error and _failure(hiding, notification.error))
