"""The services of the embedded stack, in the order in which `dev status` names them.

A new one is a file with a :class:`~workers.dev.service.Service` and a line here.
"""

from __future__ import annotations

from workers.dev.kafka import Kafka
from workers.dev.own import Relay, Trigger, Worker
from workers.dev.postgres import Postgres
from workers.dev.service import Service
from workers.dev.temporal import Temporal

SERVICES: tuple[type[Service], ...] = (Temporal, Postgres, Kafka, Worker, Relay, Trigger)

WITH_KAFKA = (Kafka.name, Relay.name, Trigger.name)
"""Those that only projects with Kafka need."""

NAMES = tuple(service.name for service in SERVICES)
