"""Search attributes: what `saga list` and the Web UI can find a run by."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from sagas.machine.commands import Record
from sagas.machine.machine import Machine

_LABELS = SearchAttributeKey.for_keyword_list("SagaLabels")


class Visibility:
    """Of one run. ``known`` are the attributes the namespace has: setting another would fail the workflow task."""

    def __init__(self, known: frozenset[str] = frozenset(), *, recorded: bool = False) -> None:
        self.known = known
        self.recorded = recorded
        """A state was written, so a later one must be written too."""

    def label(self, machine: Machine) -> None:
        """Our client sends the labels with the start; whoever else started it left that to us.

        Raises DefinitionFault: they cannot be made from this input.
        """
        labels = [f"{name}={value}" for name, value in machine.labels().items()]
        if labels and _LABELS.name in self.known and _LABELS not in workflow.info().typed_search_attributes:
            workflow.upsert_search_attributes([_LABELS.value_set(labels)])

    def record(self, record: Record) -> None:
        if record.state == "PARKED":
            workflow.logger.warning("parked at %s: `saga parked` shows what a person may decide", record.step)
        values = {"SagaState": record.state, "SagaStep": record.step, "SagaReason": record.reason}
        updates = [
            SearchAttributeKey.for_keyword(name).value_set(value)
            for name, value in values.items()
            if value is not None and name in self.known
        ]
        if updates:
            self.recorded = True
            workflow.upsert_search_attributes(updates)
