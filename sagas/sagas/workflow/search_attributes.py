"""The search attributes of a run, for `saga list` and the Web UI."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from sagas.definition.saga_ids import label_problem
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.machine import Machine
from sagas.protocol.messages import RecordState
from sagas.protocol.payloads import PAUSE_MEMO
from sagas.protocol.saga_view import PauseView

STATE_ATTRIBUTES = ("SagaState", "SagaStep", "SagaReason")

_LABELS_KEY = SearchAttributeKey.for_keyword_list("SagaLabels")
_PAUSED_KEY = SearchAttributeKey.for_keyword("SagaPaused")

OWN_ATTRIBUTES = (*STATE_ATTRIBUTES, _PAUSED_KEY.name)
"""The attributes that only the run itself sets, and no start brings."""


class RunSearchAttributes:
    """The search attributes of one run.

    ``registered`` are the attributes in the namespace: setting another one would fail the workflow task.
    """

    def __init__(self, registered: frozenset[str] = frozenset(), *, recorded: bool = False) -> None:
        self.registered = registered
        self.state_recorded = recorded
        """A state has been recorded, so later ones must be recorded too."""
        self._pause: tuple[str, str] | None = None
        """The recorded pause: its order, and since when it stands."""

    def set_labels(self, machine: Machine) -> None:
        """Set the labels of the definition, unless the start has them, as `sagas.Client` sends them.

        A start may add labels of other names, such as `batch`. What it says of those of the definition is corrected,
        also where it does not say that the attribute is registered.

        Raises DefinitionError when they cannot be evaluated for this input.
        """
        own = machine.labels()
        sent = workflow.info().typed_search_attributes.get(_LABELS_KEY)
        added = [text for text in sent or () if text.partition("=")[0] not in own]
        labels = [*(f"{name}={value}" for name, value in own.items()), *added]
        if sorted(sent or ()) == sorted(labels):
            return
        if labels and (problem := label_problem(labels)) is not None:
            raise DefinitionError(problem)
        if sent is not None or _LABELS_KEY.name in self.registered:
            workflow.upsert_search_attributes([_LABELS_KEY.value_set(labels) if labels else _LABELS_KEY.value_unset()])

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

    def record_pause(self, pause: PauseView | None) -> None:
        """Record what holds the saga back, so that it is counted and listed without a question to its worker.

        The words of the pause are in the memo, which is encrypted, and the attribute has only its order.
        """
        if _PAUSED_KEY.name not in self.registered:
            return
        now = None if pause is None else (pause.order, pause.at)
        # Temporal hands on the attribute of the run that this one continues.
        carried = workflow.info().typed_search_attributes.get(_PAUSED_KEY)
        if now == self._pause and carried == (None if pause is None else pause.order):
            return
        self._pause = now
        words = None if pause is None else {key: value for key, value in pause.to_json().items() if key != "held"}
        workflow.upsert_memo({PAUSE_MEMO: words})
        workflow.upsert_search_attributes(
            [_PAUSED_KEY.value_unset() if pause is None else _PAUSED_KEY.value_set(pause.order)]
        )
