"""The alert rules and the dashboards use existing metrics and labels, and no alert fires for what has just begun."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from ruamel.yaml import YAML
from sqlalchemy.ext.asyncio import create_async_engine

from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.serve.api import requests_counter
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.worker.failing_task_gauges import FailingTaskGauges
from saga_workers.worker.lock_gauges import LockGauges
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.poller_gauges import PollerGauges
from saga_workers.worker.prepared_gauges import PreparedGauges
from saga_workers.worker.reader_gauges import ReaderGauges
from saga_workers.worker.worker_metrics import SagaGauges, WorkerMetrics
from sagas.project import Project
from sagas.settings import Settings
from tests.helpers.alert_watch import DASHBOARDS, Panel, panels_of
from tests.helpers.prometheus_server import ALERTS, alert_rules

ROOT = Path(__file__).parents[3]
RULES = alert_rules()
PAGE = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
PANELS = [(file.name, panel) for file in sorted(DASHBOARDS.glob("*.json")) for panel in panels_of(file.name)]
DOCUMENTED = {
    name: set(filter(None, labels.split(",")))
    for name, labels in re.findall(r"^\| `(saga_[a-z_]+)(?:{([\w,]+)})?`", PAGE, flags=re.MULTILINE)
}
"""The labels of each metric on the page."""
TARGET_LABELS = {"instance", "job"}
"""Labels that Prometheus adds to all that it scrapes."""
SUFFIXES = ("_bucket", "_count", "_sum")


@functools.cache
def known() -> dict[str, Metric]:
    collected: dict[str, Metric] = {}
    client: Any = None  # nothing is asked
    engine: Any = None
    enqueued = EnqueuedMetrics({"shop": EnqueuedTable(create_async_engine("sqlite+aiosqlite://"))})
    gauges = (SagaGauges(client, dict), OpenEffects(client, Settings(root=ROOT)))
    gauges = (*gauges, LockGauges("shop", engine), PollerGauges(client, dict, "sagas"), PreparedGauges(dict))
    gauges = (*gauges, FailingTaskGauges(client, dict), ReaderGauges(Project(Settings(root=ROOT)), lambda: engine))
    registry = CollectorRegistry()
    requests_counter(registry)
    for collector in (WorkerMetrics(), *gauges, RelayMetrics(), OutboxGauges([]), TriggerMetrics(), enqueued, registry):
        for metric in collector.collect():
            collected[f"{metric.name}_total" if metric.type == "counter" else metric.name] = metric
    return collected


def test_the_rules_of_the_relay_can_be_left_out_together() -> None:
    """An alert about a missing process is in a group with the alerts that only it gives values, and with no others."""
    groups = {group["name"]: group["rules"] for group in YAML(typ="safe").load(ALERTS)["groups"]}
    own = {metric.name for collector in (RelayMetrics(), OutboxGauges([])) for metric in collector.collect()}
    asked = {word for rule in groups.pop("saga-relay") for word in re.findall(r"\bsaga_\w+", rule["expr"])}
    assert {word.removesuffix("_total") for word in asked} <= own
    absent = [rule["alert"] for rules in groups.values() for rule in rules if "absent(" in rule["expr"]]
    assert absent == ["SagaNoWorker"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_metrics_exist_and_are_documented(rule: dict[str, str]) -> None:
    names = re.findall(r"\bsaga_\w+", rule["expr"])
    assert names
    for name in names:
        assert name in known(), f"{rule['alert']} asks for {name}"
        documented = re.search(rf"`{name}(?:{{([\w,]+)}})?`", PAGE)
        assert documented is not None, f"{name} is not on the page of metrics"
        assert labels_asked_for(rule["expr"]) <= DOCUMENTED[name]


@pytest.mark.parametrize(("file", "panel"), PANELS, ids=lambda value: getattr(value, "title", value))
def test_panel_metrics_and_labels_exist(file: str, panel: Panel) -> None:
    for expression, legend in zip(panel.expressions, panel.legends, strict=True):
        names = re.findall(r"\bsaga_\w+", expression)
        assert names
        labels = set[str]()
        for name in names:
            base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
            assert {name, base} & known().keys(), f"{file}, {panel.title}: there is no metric {name}"
            documented = DOCUMENTED.get(name, DOCUMENTED.get(base))
            assert documented is not None, f"{name} is not on the page of metrics"
            labels |= documented | ({"le"} if name.endswith("_bucket") else set())
        wrong = labels_asked_for(expression, legend) - labels - TARGET_LABELS
        assert not wrong, f"{file}, {panel.title}: {', '.join(names)} has no label {', '.join(wrong)}"


@pytest.mark.parametrize("file", sorted({file for file, _ in PANELS}))
def test_variables_of_a_dashboard_have_values(file: str) -> None:
    for variable in json.loads((DASHBOARDS / file).read_text(encoding="utf-8"))["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert asked is not None, variable["query"]
        names = re.findall(r"\bsaga_\w+", asked[1])
        assert names
        assert set(names) <= known().keys()
        assert all(asked[2] in DOCUMENTED[name] | TARGET_LABELS for name in names)


def labels_asked_for(expression: str, legend: str = "") -> set[str]:
    """The labels in the selectors, groupings and legend of a query."""
    lists = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expression)
    selected = [re.sub(r'"[^"]*"', "", each) for each in re.findall(r"{([^}]*)}", expression)]
    lists += [",".join(re.findall(r"\w+", each)) for each in (*selected, *re.findall(r"{{(.*?)}}", legend))]
    return {label.strip() for part in lists for label in part.split(",") if label.strip()}


def test_each_exported_label_is_documented() -> None:
    """A family without a sample names none here."""
    for name, metric in known().items():
        exported = {label for sample in metric.samples for label in sample.labels} - {"le"}
        assert exported <= DOCUMENTED.get(name, set()), name


def test_each_documented_metric_is_in_a_panel() -> None:
    documented = set(re.findall(r"^\| `(saga_[a-z_]+)", PAGE, flags=re.MULTILINE))
    queries = " ".join(expression for _, panel in PANELS for expression in panel.expressions)
    assert {name for name in documented if not re.search(rf"\b{name}(?:{'|'.join(SUFFIXES)})?\b", queries)} == set()


BEGINNINGS = """
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{series: 'saga_relay_lso_lag{{connection="shop", topic="orders"}}', values: '3x7 0 3x40'}}
      - {{series: 'saga_trigger_stopped{{group="g", topic="orders"}}', values: '1x6 0 1x40'}}
      - {{series: 'saga_trigger_lag{{group="g", topic="orders", partition="0"}}', values: '9x30 0 9x80'}}
      - {{series: 'saga_trigger_expected{{group="g", topic="orders", job="worker"}}', values: '1x80'}}
      - {{series: 'saga_trigger_expected{{group="h", topic="orders", job="worker"}}', values: '1x80'}}
    alert_rule_test:
      - {{eval_time: 100s, alertname: SagaReadersHeldBack}}
      - {{eval_time: 4m, alertname: SagaReadersHeldBack}}
      - {{eval_time: 90s, alertname: SagaReaderStopped}}
      - {{eval_time: 3m, alertname: SagaReaderStopped}}
      - {{eval_time: 7m, alertname: SagaTriggerBehind}}
      - {{eval_time: 16m, alertname: SagaTriggerBehind}}
    promql_expr_test:
      - expr: 'count by (alertname) (ALERTS{{alertstate="firing"}})'
        eval_time: 6m
        exp_samples:
          - {{labels: '{{alertname="SagaReaderStopped"}}', value: 1}}
          - {{labels: '{{alertname="SagaReadersHeldBack"}}', value: 1}}
          - {{labels: '{{alertname="SagaNoWorker"}}', value: 1}}
          - {{labels: '{{alertname="SagaNoRelay"}}', value: 1}}
          - {{labels: '{{alertname="SagaTopicUnread"}}', value: 1}}
      - expr: 'ALERTS{{alertname="SagaTopicUnread"}}'
        eval_time: 6m
        exp_samples:
          - labels: >-
              ALERTS{{alertname="SagaTopicUnread", alertstate="firing", group="h", topic="orders", severity="critical"}}
            value: 1
      - expr: 'count by (alertname) (ALERTS{{alertstate="firing", alertname="SagaTriggerBehind"}})'
        eval_time: 19m
        exp_samples: [{{labels: '{{alertname="SagaTriggerBehind"}}', value: 1}}]
"""
"""A relay and a reader whose first scrapes find work under way, and which then stand still."""


def test_no_alert_fires_for_what_has_just_begun(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    (tmp_path / "tests.yaml").write_text(BEGINNINGS.format(rules=ALERTS))
    done = subprocess.run([program, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
