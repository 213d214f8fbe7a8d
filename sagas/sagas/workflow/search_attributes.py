"""The search attributes of a run, for `saga list` and the Web UI."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from sagas.definition.saga_ids import label_problem
from sagas.machine.arguments import DefinitionError
from sagas.machine.machine import Machine
from sagas.protocol.messages import RecordState

STATE_ATTRIBUTES = ("SagaState", "SagaStep", "SagaReason")

_LABELS_KEY = SearchAttributeKey.for_keyword_list("SagaLabels")


class RunSearchAttributes:
    """The search attributes of one run.

    ``registered`` are the attributes in the namespace: setting another one would fail the workflow task.
    """

    def __init__(self, registered: frozenset[str] = frozenset(), *, recorded: bool = False) -> None:
        self.registered = registered
        self.state_recorded = recorded
        """A state has been recorded, so later ones must be recorded too."""

    def set_labels(self, machine: Machine) -> None:
        """Set the labels, unless the client has sent them with the start, as `sagas.Client` does.

        Raises DefinitionError when they cannot be evaluated for this input.
        """
        labels = [f"{name}={value}" for name, value in machine.labels().items()]
        if (
            labels
            and _LABELS_KEY.name in self.registered
            and _LABELS_KEY not in workflow.info().typed_search_attributes
        ):
            if (problem := label_problem(labels)) is not None:
                raise DefinitionError(problem)
            workflow.upsert_search_attributes([_LABELS_KEY.value_set(labels)])

    def record_state(self, record: RecordState) -> None:
        if record.state == "PARKED":
            workflow.logger.warning("parked at %s: `saga parked` shows the possible decisions", record.step)
        values = dict(zip(STATE_ATTRIBUTES, (record.state, record.step, record.reason), strict=True))
        updates = [
            SearchAttributeKey.for_keyword(name).value_set(value)
            for name, value in values.items()
            if value is not None and name in self.registered
        ]
        if updates:
            self.state_recorded = True
            workflow.upsert_search_attributes(updates)
