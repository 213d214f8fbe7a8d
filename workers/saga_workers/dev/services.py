"""The services of the embedded stack, in the order in which `dev status` names them.

A new one is a file with a :class:`~saga_workers.dev.service.Service` and a line here.
"""

from __future__ import annotations

from saga_workers.dev.kafka import Kafka
from saga_workers.dev.own import Relay, Trigger, Worker
from saga_workers.dev.postgres import Postgres
from saga_workers.dev.service import Service
from saga_workers.dev.temporal import Temporal

SERVICES: tuple[type[Service], ...] = (Temporal, Postgres, Kafka, Worker, Relay, Trigger)

WITH_KAFKA = (Kafka.name, Relay.name, Trigger.name)
"""Those that only projects with Kafka need."""

NAMES = tuple(service.name for service in SERVICES)
