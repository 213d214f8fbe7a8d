"""The label values of a project's metrics: names of its definitions only, because every value makes a series.

Types of workflows, and names in calls and in search attributes, may be from any client of Temporal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sagas.definition.model import Definition
from sagas.protocol.payloads import NOTIFICATION_PREFIX

OTHER = "other"
"""The value for every name that no definition of the project has."""

Definitions = Callable[[], Mapping[str, Definition]]


class MetricLabels:
    """The label values for names of sagas and steps."""

    def __init__(self, definitions: Definitions = dict) -> None:
        self._definitions = definitions

    def saga(self, name: str) -> str:
        return name if name in self._definitions() else OTHER

    def step(self, saga: str, step: str) -> str:
        """The id of a step, or of a notification, of this saga."""
        definition = self._definitions().get(saga)
        if definition is None:
            return OTHER
        names = {part.id for part in definition.steps} | {
            f"{NOTIFICATION_PREFIX}{number}-{milestone}"
            for number, notification in enumerate(definition.notify)
            for milestone in notification.when
        }
        # A milestone that is reached again has a number after it.
        return next((name for name in (step, step.rpartition("-")[0]) if name in names), OTHER)
