"""A real Prometheus for tests, from the Debian package `prometheus`: it scrapes endpoints and evaluates alert rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ruamel.yaml import YAML

from saga_workers.devstack.ports import HOST
from saga_workers.devstack.service import http_get
from tests.helpers.free_ports import free_port
from tests.helpers.processes import Process

ALERTS = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"
NOT_INSTALLED = "Prometheus: the program prometheus is not installed (Debian package prometheus)"
EVERY = "1s"
"""Between two scrapes of an endpoint, and between two evaluations of the rules."""

Labels = Mapping[str, str]


def alert_rules() -> list[dict[str, Any]]:
    """The alert rules that are shipped."""
    return [rule for group in YAML(typ="safe").load(ALERTS)["groups"] for rule in group["rules"]]


class PrometheusServer(Process):
    """Scrapes ``endpoints`` (addresses) as soon as they answer.

    The rules are those of the file. Only `for` is another one in each rule that has it, a second: an alert is pending
    first, as it is in operation, and no test waits for hours.
    """

    def __init__(self, folder: Path, endpoints: Collection[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        documents: dict[str, Any] = {
            "rules.yaml": {"groups": [{"name": "all", "rules": [_shortened(rule) for rule in alert_rules()]}]},
            "prometheus.yaml": {
                "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
                "rule_files": ["rules.yaml"],
                "scrape_configs": [{"job_name": "saga", "static_configs": [{"targets": list(endpoints)}]}],
            },
        }
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
        program = prometheus_program()
        assert program is not None, NOT_INSTALLED
        argv = [program, "--config.file=prometheus.yaml", f"--web.listen-address={HOST}:{self.port}"]
        argv += ["--storage.tsdb.path=data", "--log.level=warn"]
        super().__init__("prometheus", argv, folder, self._is_ready)

    def _is_ready(self) -> bool:
        return http_get(self.port, "/-/ready")[0] == 200

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression, now."""
        return self._ask("/api/v1/query?" + urlencode({"query": expression}))["result"]

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """The series of an expression in this time, with a value each second."""
        asked = {"query": expression, "start": start, "end": end, "step": 1}
        return self._ask("/api/v1/query_range?" + urlencode(asked))["result"]

    def firing(self) -> dict[str, list[Labels]]:
        """The alerts that fire, by name: the labels of each."""
        alerts: dict[str, list[Labels]] = {}
        for alert in self._ask("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return alerts

    def _ask(self, path: str) -> Any:
        status, text = http_get(self.port, path)
        answer = json.loads(text)
        assert status == 200, answer.get("error", answer)
        return answer["data"]


def has_labels(alerts: Iterable[Labels], /, **labels: str) -> bool:
    """True if one of these alerts has these labels, among others."""
    return any(labels.items() <= its.items() for its in alerts)


def prometheus_program() -> str | None:
    return shutil.which("prometheus")


def _shortened(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {**rule, **({"for": "1s"} if "for" in rule else {})}
