"""One reconciliation from the first question to the report; and what `--repair` does about it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.client import Client as Temporal

from saga_spark.errors import JobFailed
from saga_spark.reconcile.effects import effects_of
from saga_spark.reconcile.extract import Scope
from saga_spark.reconcile.findings import CLASSES, Finding, command
from saga_spark.reconcile.outputs import judge, look, read_ledger, strangers, unclaimed
from saga_spark.runner.client import Runner
from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.databases import open_engine
from saga_workers.reconcile import Material, gather, ids_of, story_now
from saga_workers.reconcile_events import published_meanwhile, read_topics
from saga_workers.stories import iso
from sagas.errors import Infrastructure, SagaError, UsageError
from sagas.settings import Settings
from sagas.settings.model import Connection

LIMIT = 10_000
"""Findings of each class that a report holds; all are counted."""

CHECKED_AGAIN = 2_000
"""Sagas of findings that are asked for once more: what changed meanwhile is no finding."""


async def reconcile(temporal: Temporal, settings: Settings, scope: Scope, runner: Runner) -> dict[str, Any]:
    """The report as JSON (see docs/how-to/reconcile.md). Raises SagaError."""
    spark = spark_settings(settings)
    effects = effects_of(settings)
    folder = _folder(settings, spark)
    starting = start(runner)
    try:
        material = await gather(temporal, settings, effects, folder, scope)
        topics = await asyncio.to_thread(read_topics, settings, folder, scope, material.began)
        read = sum(material.rows.values())
        if topics is not None:
            read += topics.rows
            material.rows["records of topics"] = topics.compared
        request = {
            "folder": str(folder),
            "effects": [one.to_json() for one in effects],
            "since": scope.since,
            "horizon": material.horizon,
            "rows": read,
            "limit": LIMIT,
            "topics": None if topics is None else topics.to_json(),
        }
        await starting
        answer = await runner.run("books", request, tag=f"reconcile-{uuid.uuid4().hex}")
        lines = (folder / "findings.jsonl").read_text(encoding="utf-8").splitlines()
        findings = [Finding.read(json.loads(line)) for line in lines]
        counts = Counter(answer["counts"])
        news = await published_meanwhile(settings, findings)
        findings = [one for one in findings if one not in news]
        counts.subtract(one.kind for one in news)
    except (JobFailed, Infrastructure) as error:
        raise SagaError(f"The books could not be compared: {error}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    published = await _outputs(temporal, settings, spark, scope, material)
    counts.update(one.kind for one in published)
    findings, gone = await _still_true(temporal, [*findings, *published], material)
    counts.subtract(one.kind for one in gone)
    return _report(scope, material, findings, {kind: count for kind, count in counts.items() if count > 0})


def start(runner: Runner) -> asyncio.Task[Any]:
    """Let Spark start beside everything else; whoever awaits the task is told what went wrong."""
    task = asyncio.create_task(runner.run("ready", {}, tag=f"ready-{uuid.uuid4().hex}"))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may come to wait for it
    return task


def ledger_connection(settings: Settings, spark: SparkSettings) -> Connection | None:
    """Where Spark steps keep their rows; None: nowhere."""
    return None if spark.ledger is None else settings.connection(spark.ledger)


async def _outputs(
    temporal: Temporal, settings: Settings, spark: SparkSettings, scope: Scope, material: Material
) -> list[Finding]:
    connection = ledger_connection(settings, spark)
    if connection is None:
        return []
    engine = open_engine(connection)
    try:
        rows = await read_ledger(engine, scope)
    finally:
        await engine.dispose()
    material.rows["outputs"] = len(rows)
    states: dict[str, str] = dict(material.states)
    for saga_id in {row.target.saga_id for row in rows} - states.keys():
        if (story := await story_now(temporal, saga_id)) is not None:
            states[saga_id] = story["state"]
    evidence = [await asyncio.to_thread(look, row, spark) for row in rows]
    found = [finding for one in evidence if (finding := judge(one, states.get(one.row.target.saga_id)))]
    if scope.saga_id is None and scope.since is None:
        found += unclaimed(await asyncio.to_thread(strangers, rows, spark), states)
    return found


async def _still_true(
    temporal: Temporal, findings: Sequence[Finding], material: Material
) -> tuple[list[Finding], list[Finding]]:
    """The findings, with their commands, whose sagas still stand as they did; and the others."""
    now: dict[str, Mapping[str, Any] | None] = {}
    for saga_id in ids_of(findings)[:CHECKED_AGAIN]:
        now[saga_id] = await story_now(temporal, saga_id)
    kept: list[Finding] = []
    gone: list[Finding] = []
    for one in findings:
        story = now.get(one.saga_id or "")
        moved = story is not None and story["state"] != material.states.get(one.saga_id or "", story["state"])
        can_undo = story is not None and bool(story.get("can_undo"))
        (gone if moved else kept).append(replace(one, command=command(one, can_undo=can_undo)))
    return kept, gone


def _report(scope: Scope, material: Material, findings: Sequence[Finding], counts: Mapping[str, int]) -> dict[str, Any]:
    order = list(CLASSES)
    return {
        "agree": not counts,
        "saga": scope.saga_id,
        "since": _moment(scope.since),
        "until": _moment(material.began),
        "read": {"sagas": 0, **material.rows},
        "counts": {kind: counts[kind] for kind in order if kind in counts},
        "findings": [one.to_json() for one in sorted(findings, key=lambda one: order.index(one.kind))],
        "seconds": round(time.time() - material.began, 1),
    }


def _moment(seconds: float | None) -> str | None:
    from datetime import UTC, datetime

    return None if seconds is None else iso(datetime.fromtimestamp(seconds, UTC))


def _folder(settings: Settings, spark: SparkSettings) -> Path:
    """Where the extracts go: the runner and its executors must be able to read it."""
    if not spark.stage.startswith("file:"):
        if not spark.master.startswith("local") or spark.remote:
            raise UsageError(
                "a reconciliation on a cluster needs a stage that this machine and the cluster see as files",
                help='[spark] stage = "file:///…" on shared storage, or master = "local[2]"',
            )
        return settings.dev_folder / "reconcile" / uuid.uuid4().hex
    return Path(spark.stage.removeprefix("file://")) / "reconcile" / uuid.uuid4().hex
