"""Notes which alerts fire in a real Prometheus while a test makes situations, and what a dashboard shows of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.prometheus_server import Labels, PrometheusServer, has_labels, prometheus_program
from tests.helpers.waiting import LIMIT, until_in_thread

DASHBOARDS = Path(__file__).parents[2] / "deploy/grafana"
INTERVAL = "5m"
"""The value that Grafana sets for `$__rate_interval`: here longer than any test."""


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard with the expressions of its queries, as Prometheus is asked for them, and the legend of
    each.
    """

    title: str
    expressions: Sequence[str]
    legends: Sequence[str] = ()


def panels_of(dashboard: str) -> list[Panel]:
    """The panels with queries of deploy/grafana/``dashboard``, all of whose variables have the value `All`."""
    document = json.loads((DASHBOARDS / dashboard).read_text(encoding="utf-8"))
    values = {variable["name"]: variable["allValue"] for variable in document["templating"]["list"][1:]}
    values["__rate_interval"] = INTERVAL
    return [
        Panel(
            panel["title"],
            [_filled(target["expr"], values) for target in panel["targets"]],
            [target.get("legendFormat", "") for target in panel["targets"]],
        )
        for panel in document["panels"]
        if panel["type"] != "row"
    ]


def _filled(expression: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, expression
    return expression


@dataclass
class Watch:
    """A Prometheus, with all alerts that have fired so far."""

    prometheus: PrometheusServer
    began: float = field(default_factory=time.time)
    alerts: dict[str, list[Labels]] = field(default_factory=dict)

    def look(self) -> Mapping[str, Sequence[Labels]]:
        for name, its in self.prometheus.firing().items():
            noted = self.alerts.setdefault(name, [])
            noted.extend(labels for labels in its if labels not in noted)
        return self.alerts

    async def until_scraped(self, endpoints: int) -> None:
        """Until so many endpoints have been scraped: a rate has no value for what happens before the first scrape."""
        await until_in_thread(lambda: self.prometheus.query(f"sum(up) == {endpoints}"))

    async def until_fired(self, expected: Collection[tuple[str, Labels]], limit: float = LIMIT) -> None:
        """Until all these alerts have fired, each with its labels among others, or the time is over: who asked for
        them says what is missing.
        """
        end = time.monotonic() + limit
        while time.monotonic() < end:
            alerts = await asyncio.to_thread(self.look)
            if all(has_labels(alerts.get(name, ()), **labels) for name, labels in expected):
                return
            await asyncio.sleep(0.2)

    def without_data(self, panel: Panel) -> list[str]:
        """The queries of a panel that have shown nothing since the watch began."""
        return [expression for expression in panel.expressions if not self._has_data(expression)]

    def _has_data(self, expression: str) -> bool:
        series = self.prometheus.query_range(expression, self.began, time.time())
        return any(not math.isnan(float(value)) for its in series for _, value in its["values"])


@contextlib.contextmanager
def watching(folder: Path, endpoints: Collection[str]) -> Iterator[Watch | None]:
    """Watch these endpoints, which do not answer yet; None without Prometheus."""
    if prometheus_program() is None:
        yield None
        return
    with PrometheusServer(folder, endpoints) as prometheus:
        yield Watch(prometheus)


@dataclass(frozen=True)
class Watched:
    """The notes of a watch: all alerts, and the queries of each panel that have shown nothing, by its title."""

    alerts: Mapping[str, Sequence[Labels]]
    empty: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, watch: Watch, dashboard: str) -> Watched:
        return cls(watch.look(), {panel.title: watch.without_data(panel) for panel in panels_of(dashboard)})

    def has_fired(self, alert: str, /, **labels: Any) -> bool:
        return has_labels(self.alerts.get(alert, ()), **labels)
