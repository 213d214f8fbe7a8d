"""A Kafka broker of the project's own, from its jars, on the Java that is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from saga_activities.kafka.config import require_client
from saga_workers.dev.kafka_jars import jars
from saga_workers.dev.kafka_server import KafkaServer, share_classes
from saga_workers.dev.ports import HOST
from saga_workers.dev.process import Launch
from saga_workers.dev.service import Service
from sagas.errors import SagaError


class Kafka(Service):
    name: ClassVar[str] = "kafka"
    grace: ClassVar[float] = 15.0

    def ports(self) -> Mapping[str, int | None]:
        return {"port": None, "controller_port": None}

    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch:
        server = KafkaServer(self.folder.data(self.name), jars(lambda _: None), ports["port"], ports["controller_port"])
        server.prepare()
        return Launch(server.argv(), server.folder, os.environ)

    def waits_for(self, ports: Mapping[str, int]) -> str | None:
        server = KafkaServer(self.folder.data(self.name), (), ports["port"], ports["controller_port"])
        return None if server.answers() else "the broker"

    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        return {"address": f"{HOST}:{ports['port']}"}

    def toml(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {"kafka": {"bootstrap_servers": f"{HOST}:{ports['port']}"}}


def why_no_broker(say: Callable[[str], Any]) -> str | None:
    """One sentence: why there is no Kafka on this machine; None: its jars are here now, fetched if they had to be."""
    try:
        require_client()
        share_classes(jars(say))
    except SagaError as error:
        return f"Kafka is not started, everything that needs none is: {error.message.rstrip('.')}."
    return None
