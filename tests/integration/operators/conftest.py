"""All states on one stack, made at the same time; what the commands and the metrics show of them is read once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from saga_activities import standing_pauses
from saga_activities.connections import open_engine
from saga_activities.guard.two_phase import prepared
from saga_workers.reconcile.late_replies import find_late_replies
from saga_workers.reconcile.open_saga_findings import find_left_claims, find_missing_runs, find_replaced_runs
from saga_workers.reconcile.prepared_transactions import find_unowned
from saga_workers.relay.outbox_table import read_lag
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.stuck import run_reasons
from saga_workers.views.locks import list_orphans
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.worker_metrics import SagaGauges
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.operators.advice import Followed, follow_all
from tests.integration.operators.literal_commands import LOOKED
from tests.integration.operators.states import STATES
from tests.integration.operators.troubled_project import Printed, Stack, running_stack

CONFIGS = sorted({state.config for state in STATES})


@dataclass
class Observed:
    """Reports of doctor, lists and metrics. ``ids``: the saga of each state, by its name."""

    ids: Mapping[str, str]
    doctor: Mapping[str, Sequence[Mapping[str, Any]]]
    stuck: Mapping[str, Sequence[Mapping[str, Any]]]
    metrics: Sequence[Metric]
    findings: Sequence[tuple[str, str | None]]
    """Class and saga, or transaction, of what `saga reconcile` finds besides its comparison of effects."""
    advice: Mapping[str, Sequence[Followed]]
    looks: Mapping[str, Printed]
    """What the commands that change nothing print."""
    rows_before_looks: Mapping[str, Any]
    rows_after_looks: Mapping[str, Any]
    """What is in the tables, by table."""


@pytest.fixture(scope="session")
def observed(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Observed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_reasons, "MANY_ATTEMPTS", 2)
        patch.setattr(run_reasons, "DUE", 1.0)
        patch.setattr(standing_pauses, "MAX_AGE", 0.0)
        patch.setattr(prepared, "STUCK_AFTER", 1.0)
        folder = tmp_path_factory.mktemp("operators") / uuid.uuid4().hex[:8]
        yield asyncio.run(observe(folder, temporal.address, new_database(postgres_server)))


async def observe(folder: Path, address: str, url: str) -> Observed:
    async with running_stack(folder, address, url) as stack:
        ids = await asyncio.gather(*(state.make(stack) for state in STATES))
        stack.ids = {state.name: id for state, id in zip(STATES, ids, strict=True)}
        listed = {config: await until(lambda config=config: list_all(stack, config)) for config in CONFIGS}
        documents, metrics, findings = await asyncio.gather(
            run_doctors(stack), read_metrics(stack), find_besides_comparison(stack)
        )
        texts = {
            config: [str(value) for check in documents[config] for value in (check["message"], check["help"])]
            + [reason for row in listed[config] for reason in row["stuck"]]
            for config in CONFIGS
        }
        before, looks, after = all_rows(stack), await run_looks(stack), all_rows(stack)
        advice = await follow_all(stack, texts)
        return Observed(stack.ids, documents, listed, metrics, findings, advice, looks, before, after)


def all_rows(stack: Stack) -> dict[str, Any]:
    """The rows of the tables that only commands and decisions change while all sagas are stuck."""
    tables = ("effects", "saga_outbox", "saga_lock", "saga_lock_wait", "saga_row_lock")
    return {table: sorted(map(str, stack.sql(f"select * from {table}"))) for table in tables}


async def run_looks(stack: Stack) -> dict[str, Printed]:
    parked = next(stack.ids[state.name] for state in STATES if state.name == "an undo is parked")
    return {
        command: await stack.saga(*(parked if word == "ID" else word for word in words))
        for command, words in LOOKED.items()
    }


async def list_all(stack: Stack, config: str) -> list[dict[str, Any]] | None:
    """The stuck sagas, as soon as all are listed: the visibility store lags, and operations must have failed often."""
    rows = (await stack.saga("--json", "list", "--stuck", "--limit", "200", config=config)).json
    reasons = {row["id"]: "\n".join(row["stuck"]) for row in rows}
    expected = {stack.ids[state.name]: state.stuck for state in STATES if state.config == config and state.stuck}
    return rows if all(text in reasons.get(id, "") for id, text in expected.items()) else None


async def run_doctors(stack: Stack) -> dict[str, list[dict[str, Any]]]:
    return {config: (await stack.saga("--json", "doctor", config=config)).json for config in CONFIGS}


async def read_metrics(stack: Stack) -> list[Metric]:
    pauses = stack.ledger.locator.ledger.pauses
    breakers = stack.ledger_plugin.breakers
    assert breakers is not None
    definitions = stack.client.project.definitions.values()
    gauges = SagaGauges(stack.client.temporal, definitions, pauses, breakers.states)
    await gauges.refresh()
    metrics = [*stack.plugin.metrics.collect(), *gauges.collect()]
    effects = [OpenEffects(client.temporal, client.project.settings) for client in (stack.client, stack.ledger)]
    await asyncio.gather(*(effect_gauges.refresh() for effect_gauges in effects))
    metrics += [metric for effect_gauges in effects for metric in effect_gauges.collect()]
    outboxes = OutboxGauges([])
    engine = open_engine("shop", stack.url, 1)
    outboxes._lags["shop"] = await read_lag(engine)  # the rest of its refresh asks Kafka
    await engine.dispose()
    return [*metrics, *outboxes.collect()]


async def find_besides_comparison(stack: Stack) -> list[tuple[str, str | None]]:
    """Findings of `saga reconcile` besides its comparison; the suspects are the sagas in the guards."""
    settings, locator = stack.client.project.settings, stack.client.locator
    guarded = [id for (id,) in stack.sql("select distinct saga_id from saga_guard")]
    findings = await find_missing_runs(locator, settings, None, guarded)
    findings += await find_replaced_runs(locator, settings, guarded)
    findings += await find_unowned(locator, settings, None, {})
    findings += await find_left_claims(stack.ledger.locator, "shop")
    findings += await find_late_replies(locator, settings, dict.fromkeys(guarded, "COMPENSATED"), None)
    missing = [(finding.kind, finding.saga_id or (finding.row or {}).get("id")) for finding in findings]
    return [*missing, *(("lock_left", orphan.owner) for orphan in await list_orphans(locator, settings))]
