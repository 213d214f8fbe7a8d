"""All states on one stack, made at the same time; what the commands and the metrics show of them is read once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from saga_activities import standing_pauses
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.enqueued import enqueued_metrics
from saga_workers.reconcile.late_replies import find_late_replies
from saga_workers.reconcile.open_saga_findings import find_left_claims, find_lost_runs
from saga_workers.reconcile.prepared_transactions import find_unowned
from saga_workers.reconcile.recheck import recheck
from saga_workers.relay import relay_status
from saga_workers.stuck import run_reasons
from saga_workers.views import reported_reasons
from saga_workers.views.locks import list_orphans
from saga_workers.worker import failing_task_gauges, lock_gauges, poller_gauges, prepared_gauges, worker_metrics
from tests.helpers.alert_watch import Watch, Watched, watching
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.operators.advice import Followed, follow_all, follow_for_many
from tests.integration.operators.advising_places import recorded_places
from tests.integration.operators.literal_commands import LOOKED
from tests.integration.operators.scraped_stack import (
    choose_endpoints,
    leave_enqueued_rows,
    lose_a_ledger_row,
    running_endpoints,
)
from tests.integration.operators.states import IN_ORDER, STATES, USED_AGAIN, alert
from tests.integration.operators.troubled_project import Printed, Stack, running_stack

OF_NO_ENDPOINT = ("SagaNoWorker", "SagaNoRelay")
"""Alerts that fire while nothing is scraped."""

EXPECTED = (
    *(state.alert for state in STATES if state.alert is not None),
    alert("SagaLedgerRowsLost"),
    alert("SagaEnqueuedLate"),
    alert("SagaEnqueuedRefused"),
)
"""Alerts that fire after the states are made."""

MAKERS_AT_A_TIME = 8

CONFIGS = sorted({state.config for state in STATES})


@dataclass
class Observed:
    """Reports of doctor, lists and metrics. ``ids``: the saga of each state, by its name; ``in_order``: of those that
    have ended.
    """

    ids: Mapping[str, str]
    in_order: Mapping[str, str]
    refused: Mapping[str, Printed]
    """What `saga resume` prints for each of those, and for a run that has the id of a completed saga."""
    doctor: Mapping[str, Sequence[Mapping[str, Any]]]
    stuck: Mapping[str, Sequence[Mapping[str, Any]]]
    metrics: Sequence[Metric]
    watched: Watched | None
    """Alerts and panels; None without Prometheus."""
    findings: Sequence[tuple[str, str | None]]
    """Class and saga, or transaction, of what `saga reconcile` finds besides its comparison of effects."""
    findings_with_ledger: Sequence[tuple[str, str | None]]
    """Those about sagas without a run, in the project that has the ledger."""
    advice: Mapping[str, Sequence[Followed]]
    advice_for_many: Sequence[Followed]
    """The commands that concern all sagas of a name, of a connection or of a filter."""
    composed: Mapping[str, set[str]]
    """The commands that each place of the source has composed meanwhile."""
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
        patch.setattr(reported_reasons, "MANY_ATTEMPTS", 2)
        patch.setattr(run_reasons, "DUE", 1.0)
        patch.setattr(standing_pauses, "MAX_AGE", 0.0)
        gauges = (failing_task_gauges, lock_gauges, poller_gauges, prepared_gauges, worker_metrics)
        for module in (*gauges, enqueued_metrics, relay_status):
            patch.setattr(module, "GAUGE_MAX_AGE", 1.0)
        folder = tmp_path_factory.mktemp("operators") / uuid.uuid4().hex[:8]
        with pytest.MonkeyPatch.context() as until_then, recorded_places(until_then) as composed:
            seen = asyncio.run(observe(folder, temporal.address, new_database(postgres_server), composed))
        yield seen


async def observe(folder: Path, address: str, url: str, composed: Mapping[str, set[str]]) -> Observed:
    addresses = choose_endpoints()
    with watching(folder.with_name("prometheus"), addresses.values()) as watch:
        if watch is not None:
            await watch.until_fired([(name, {}) for name in OF_NO_ENDPOINT])
        return await observe_watched(watch, folder, address, url, addresses, composed)


async def observe_watched(
    watch: Watch | None,
    folder: Path,
    address: str,
    url: str,
    addresses: Mapping[str, str],
    composed: Mapping[str, set[str]],
) -> Observed:
    async with (
        running_stack(folder, address, url) as stack,
        running_endpoints(stack, addresses) as endpoints,
    ):
        if watch is not None:
            await watch.until_scraped(len(addresses))
        await leave_enqueued_rows(stack, endpoints.delivering)  # the first sample of a counter is no increase
        makers = [*(state.make for state in STATES), *IN_ORDER.values()]
        ids = await make_all(stack, makers)
        stack.ids = dict(zip([state.name for state in STATES], ids, strict=False))
        in_order = dict(zip(IN_ORDER, ids[len(STATES) :], strict=True))
        listed = {config: await until(lambda config=config: list_all(stack, config)) for config in CONFIGS}
        await lose_a_ledger_row(stack)
        metrics = await endpoints.refresh()
        documents, findings, watched = await asyncio.gather(
            run_doctors(stack), find_besides_comparison(stack), watch_states(watch, stack)
        )
        texts = {
            config: [str(value) for check in documents[config] for value in (check["message"], check["help"])]
            + [reason for row in listed[config] for reason in row["stuck"]]
            for config in CONFIGS
        }
        before, looks, after = all_rows(stack), await run_looks(stack), all_rows(stack)
        refused = {name: await stack.saga("resume", id, config="ledger.toml") for name, id in in_order.items()}
        refused[USED_AGAIN] = await stack.saga("resume", stack.ids[USED_AGAIN])
        with_ledger = await find_with_ledger(stack)
        for_many = await follow_for_many(stack, texts)
        advice = await follow_all(stack, texts)
        return Observed(
            stack.ids,
            in_order,
            refused,
            documents,
            listed,
            metrics,
            watched,
            findings,
            with_ledger,
            advice,
            for_many,
            composed,
            looks,
            before,
            after,
        )


async def make_all(stack: Stack, makers: Sequence[Callable[[Stack], Awaitable[str]]]) -> list[str]:
    """The ids of the sagas. Few at a time: each maker asks for its saga again and again, which takes as long as others
    ask.
    """
    room = asyncio.Semaphore(MAKERS_AT_A_TIME)

    async def make_one(make: Callable[[Stack], Awaitable[str]]) -> str:
        async with room:
            return await make(stack)

    return await asyncio.gather(*map(make_one, makers))


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


async def watch_states(watch: Watch | None, stack: Stack) -> Watched | None:
    """Wait until Prometheus shows all states."""
    if watch is None:
        return None
    prometheus = watch.prometheus

    async def counts_failures() -> Any:
        return await asyncio.to_thread(prometheus.query, 'saga_step_attempts_total{step="fly"}')

    await until(counts_failures)
    await stack.start("failing")  # the first sample of a counter is no increase
    await watch.until_fired([(alert.name, alert.labels) for alert in EXPECTED])
    watched = await asyncio.to_thread(Watched.of, watch, "sagas.json")
    prometheus.kill()
    return watched


async def find_with_ledger(stack: Stack) -> list[tuple[str, str | None]]:
    guarded = [id for (id,) in stack.sql("select distinct saga_id from saga_guard")]
    settings, locator = stack.ledger.project.settings, stack.ledger.locator
    findings = await find_lost_runs(locator, settings, ReconciliationScope(), guarded)
    return [(finding.kind, finding.saga_id) for finding in findings]


async def find_besides_comparison(stack: Stack) -> list[tuple[str, str | None]]:
    """Findings of `saga reconcile` besides its comparison; the suspects are the sagas in the guards."""
    settings, locator = stack.client.project.settings, stack.client.locator
    guarded = [id for (id,) in stack.sql("select distinct saga_id from saga_guard")]
    findings = await find_lost_runs(locator, settings, ReconciliationScope(), guarded)
    # The comparison has seen another run of the id than the one that has it now.
    findings, _ = await recheck(locator, settings, findings, dict.fromkeys(guarded, "TERMINATED"))
    findings += await find_unowned(locator, settings, None, {})
    findings += await find_left_claims(stack.ledger.locator, "shop")
    findings += await find_late_replies(locator, settings, dict.fromkeys(guarded, "COMPENSATED"), None)
    missing = [(finding.kind, finding.saga_id or (finding.row or {}).get("id")) for finding in findings]
    return [*missing, *(("lock_left", orphan.owner) for orphan in await list_orphans(locator, settings))]
