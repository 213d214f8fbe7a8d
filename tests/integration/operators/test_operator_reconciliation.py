"""`saga reconcile` as a whole: it finds the states, and its repair ends or leaves them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.operators.advice import snapshot
from tests.integration.operators.states import STATES
from tests.integration.operators.troubled_project import running_stack

FOUND = [state for state in STATES if state.reconcile and state.config == "saga.toml"]
REPAIRED = {"open_effects": "COMPENSATED"}
"""The state of the saga after the repair."""

UNCHANGED = ("run_missing", "run_replaced")
"""The findings that a repair leaves to `saga resume`."""


@pytest.mark.slow
async def test_reconciliation_finds_each_state_and_its_repair_harms_none(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    async with running_stack(tmp_path / "stack", temporal.address, new_database(postgres_server)) as stack:
        stack.ids = dict(
            zip(
                [state.name for state in FOUND],
                await asyncio.gather(*(state.make(stack) for state in FOUND)),
                strict=True,
            )
        )
        reported = await stack.saga("--json", "reconcile")
        findings = {
            (finding["class"], finding["saga_id"] or (finding["row"] or {}).get("id")): finding["command"]
            for finding in reported.json["findings"]
        }
        assert {(state.reconcile, stack.ids[state.name]) for state in FOUND} <= findings.keys(), reported.out
        for state in FOUND:
            id = stack.ids[state.name]
            if state.reconcile in ("run_missing", "run_replaced"):
                assert {command for (_, saga), command in findings.items() if saga == id} == {f"saga resume {id}"}
        before = {state.name: await snapshot(stack, state, stack.ids[state.name]) for state in FOUND}
        assert (await stack.saga("--json", "reconcile", "--repair", "--yes")).code == 8
        for state in FOUND:
            after = await snapshot(stack, state, stack.ids[state.name])
            assert before[state.name].harm(after) is None, (state.name, after)
            if state.reconcile in REPAIRED:
                assert after.state == REPAIRED[state.reconcile]
            if state.reconcile in UNCHANGED:
                assert after == before[state.name]
