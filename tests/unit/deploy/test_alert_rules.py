"""The alert rules use existing metrics and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from ruamel.yaml import YAML
from sqlalchemy.ext.asyncio import create_async_engine

from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.worker_metrics import SagaGauges, WorkerMetrics
from sagas.settings import Settings

ROOT = Path(__file__).parents[3]
RULES = [
    rule for group in YAML(typ="safe").load(ROOT / "deploy/prometheus/alerts.yaml")["groups"] for rule in group["rules"]
]


def known() -> dict[str, Metric]:
    collected: dict[str, Metric] = {}
    client: Any = None  # nothing is asked
    enqueued = EnqueuedMetrics({"shop": EnqueuedTable(create_async_engine("sqlite+aiosqlite://"))})
    gauges = (SagaGauges(client, []), OpenEffects(client, Settings(root=ROOT)))
    for collector in (WorkerMetrics(), *gauges, RelayMetrics(), OutboxGauges([]), TriggerMetrics(), enqueued):
        for metric in collector.collect():
            collected[f"{metric.name}_total" if metric.type == "counter" else metric.name] = metric
    return collected


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_metrics_exist_and_are_documented(rule: dict[str, str]) -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    names = re.findall(r"\bsaga_\w+", rule["expr"])
    assert names
    for name in names:
        assert name in known(), f"{rule['alert']} asks for {name}"
        documented = re.search(rf"`{name}(?:{{([\w,]+)}})?`", page)
        assert documented is not None, f"{name} is not on the page of metrics"
        labels = set((documented[1] or "").split(","))
        asked = re.findall(r"by \(([\w, ]+)\)", rule["expr"]) + re.findall(r"{(\w+)=", rule["expr"])
        assert {label.strip() for part in asked for label in part.split(",")} <= labels
