"""No check is passed over an open effect: each state is shown by `doctor`, and by what the table in the docs says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.alert_watch import panels_of
from tests.helpers.prometheus_server import NOT_INSTALLED, alert_rules
from tests.integration.operators.conftest import Observed
from tests.integration.operators.messaging_situations import EXPECTED as OF_MESSAGING
from tests.integration.operators.states import IN_ORDER, STATES, USED_AGAIN, State

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/find-stuck.md").read_text(encoding="utf-8")
BY_SPARK = ("open_effects",)

each_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)


def documented() -> list[tuple[str, ...]]:
    """The rows of the table of states, without markup."""
    table = PAGE.split("| state | `doctor` |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [tuple(cell.strip().strip("`").replace("–", "") for cell in row) for row in rows]


def test_the_table_in_the_docs_has_these_states() -> None:
    assert documented() == [
        (
            state.name,
            state.doctor,
            "✔" if state.stuck else "",
            state.reconcile or "",
            state.metric or "",
            "" if state.alert is None else state.alert.name,
        )
        for state in STATES
    ]


@each_state
def test_doctor_fails(observed: Observed, state: State) -> None:
    results = [
        check for check in observed.doctor[state.config] if check["check"] == state.doctor and check["ok"] is False
    ]
    assert results, observed.doctor[state.config]
    id = observed.ids[state.name]
    if state.doctor in ("sagas", "locks") or "transaction" in state.doctor:
        assert any(id in result["message"] or " and " in result["message"] for result in results), results
    assert all(result["help"] for result in results)


@each_state
def test_the_list_of_stuck_sagas_has_the_reason(observed: Observed, state: State) -> None:
    reasons = [row["stuck"] for row in observed.stuck[state.config] if row["id"] == observed.ids[state.name]]
    if state.stuck is None:
        assert reasons == []
    else:
        [its] = reasons
        assert any(state.stuck in reason for reason in its), its


@pytest.mark.parametrize(
    "state",
    [state for state in STATES if state.reconcile and state.reconcile not in BY_SPARK],
    ids=lambda state: state.name,
)
def test_reconciliation_finds_it(observed: Observed, state: State) -> None:
    assert (state.reconcile, observed.ids[state.name]) in observed.findings


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_saga_that_has_ended_is_not_named(observed: Observed, name: str) -> None:
    id = observed.in_order[name]
    assert not any(id in str(check) for check in observed.doctor["ledger.toml"])
    assert not any(id == row["id"] for row in observed.stuck["ledger.toml"])
    assert [kind for kind, saga_id in observed.findings_with_ledger if saga_id == id] == []
    assert observed.refused[name].code == 9, observed.refused[name]


def test_a_completed_saga_is_not_resumed_for_a_run_that_has_its_id(observed: Observed) -> None:
    refused = observed.refused[USED_AGAIN]
    assert (refused.code, "has ended, so there is nothing to resume" in refused.err) == (9, True), refused


@pytest.mark.parametrize("state", [state for state in STATES if state.metric], ids=lambda state: state.name)
def test_a_metric_shows_it_and_its_alert_fires(observed: Observed, state: State) -> None:
    assert state.metric is not None
    assert state.alert is not None
    [rule] = [rule for rule in alert_rules() if rule["alert"] == state.alert.name]
    assert re.search(rf"\b{state.metric}\b", rule["expr"])
    assert state.metric in {sample.name for metric in observed.metrics for sample in metric.samples}
    if observed.watched is None:
        pytest.skip(NOT_INSTALLED)
    assert observed.watched.has_fired(state.alert.name, **state.alert.labels), observed.watched.alerts


@pytest.mark.parametrize("name", [rule["alert"] for rule in alert_rules() if rule["alert"] not in OF_MESSAGING])
def test_each_other_alert_has_fired_too(observed: Observed, name: str) -> None:
    if observed.watched is None:
        pytest.skip(NOT_INSTALLED)
    assert name in observed.watched.alerts


@pytest.mark.parametrize("panel", [panel.title for panel in panels_of("sagas.json")])
def test_each_panel_has_data(observed: Observed, panel: str) -> None:
    if observed.watched is None:
        pytest.skip(NOT_INSTALLED)
    assert observed.watched.empty[panel] == []
