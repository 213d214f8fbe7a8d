"""The public API for authors of sagas.

    from sagas import action, Step, Rejected

Everything else in this package is the engine. Each name is imported on first use: most commands need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saga_activities.enqueued.enqueue import enqueue as enqueue
    from saga_activities.enqueued.enqueue import enqueue_signal as enqueue_signal
    from saga_spark.job.streaming import write_batch_once as write_batch_once
    from saga_spark.sinks.parquet.parquet_pointer import read_pointer as read_pointer
    from saga_workers.client import Client as Client
    from saga_workers.client import SagaFailed as SagaFailed
    from saga_workers.participant.http_participant import http_app as http_app
    from saga_workers.worker.plugin import SagaPlugin as SagaPlugin
    from sagas.actions.batch import BatchStep as BatchStep
    from sagas.actions.batch import Item as Item
    from sagas.actions.consumers import Message as Message
    from sagas.actions.consumers import bridge as bridge
    from sagas.actions.consumers import consumer as consumer
    from sagas.actions.events import Event as Event
    from sagas.actions.participants import Command as Command
    from sagas.actions.participants import participant as participant
    from sagas.actions.registry import Absent as Absent
    from sagas.actions.registry import Done as Done
    from sagas.actions.registry import Unknown as Unknown
    from sagas.actions.registry import action as action
    from sagas.actions.step import Step as Step
    from sagas.errors import AlreadyCompensated as AlreadyCompensated
    from sagas.errors import AttemptOver as AttemptOver
    from sagas.errors import Rejected as Rejected
    from sagas.errors import SagaError as SagaError

# The references to higher packages are the only ones of this lowest layer: users import from `sagas` alone.
_MODULES = {
    "Absent": "sagas.actions.registry",
    "AlreadyCompensated": "sagas.errors",
    "AttemptOver": "sagas.errors",
    "BatchStep": "sagas.actions.batch",
    "Client": "saga_workers.client",
    "Command": "sagas.actions.participants",
    "Done": "sagas.actions.registry",
    "Event": "sagas.actions.events",
    "Item": "sagas.actions.batch",
    "Message": "sagas.actions.consumers",
    "Rejected": "sagas.errors",
    "SagaError": "sagas.errors",
    "SagaFailed": "saga_workers.client",
    "SagaPlugin": "saga_workers.worker.plugin",
    "Step": "sagas.actions.step",
    "Unknown": "sagas.actions.registry",
    "action": "sagas.actions.registry",
    "bridge": "sagas.actions.consumers",
    "consumer": "sagas.actions.consumers",
    "enqueue": "saga_activities.enqueued.enqueue",
    "enqueue_signal": "saga_activities.enqueued.enqueue",
    "http_app": "saga_workers.participant.http_participant",
    "participant": "sagas.actions.participants",
    "read_pointer": "saga_spark.sinks.parquet.parquet_pointer",
    "write_batch_once": "saga_spark.job.streaming",
}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'sagas' has no attribute {name!r}")
