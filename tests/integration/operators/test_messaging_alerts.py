"""Every alert of the messaging fires in a real Prometheus, and every panel of its dashboard has data."""

from __future__ import annotations

import asyncio

import pytest

from saga_workers.relay import relay_status
from tests.helpers.alert_watch import Watched, panels_of
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.prometheus_server import NOT_INSTALLED
from tests.integration.operators.messaging_situations import EXPECTED, watch_messaging


@pytest.fixture(scope="module")
def watched(
    temporal: TemporalServer, postgres_server: DatabaseServer, kafka: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Watched:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_status, "GAUGE_MAX_AGE", 1.0)
        folder = tmp_path_factory.mktemp("messaging")
        seen = asyncio.run(watch_messaging(folder, temporal.address, postgres_server, kafka))
    if seen is None:
        pytest.skip(NOT_INSTALLED)
    return seen


@pytest.mark.parametrize("alert", EXPECTED)
def test_each_alert_fires(watched: Watched, alert: str) -> None:
    assert watched.has_fired(alert), watched.alerts


@pytest.mark.parametrize("panel", [panel.title for panel in panels_of("messaging.json")])
def test_each_panel_has_data(watched: Watched, panel: str) -> None:
    assert watched.empty[panel] == []
