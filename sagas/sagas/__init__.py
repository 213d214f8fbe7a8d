"""The public API for authors of sagas.

    from sagas import action, Step, Rejected

Everything else in this package is the engine. Names that need Temporal or pyarrow are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sagas.actions import Absent, Done, Unknown, action
from sagas.actions.batch import BatchStep, Item
from sagas.actions.consumers import Message, bridge, consumer
from sagas.actions.events import Event
from sagas.actions.participants import Command, participant
from sagas.actions.step import Step
from sagas.errors import AlreadyCompensated, AttemptOver, Rejected, SagaError

if TYPE_CHECKING:
    from saga_spark.job.streaming import write_batch_once as write_batch_once
    from saga_spark.sinks.parquet.parquet_pointer import read_pointer as read_pointer
    from saga_workers.client import Client as Client
    from saga_workers.client import SagaFailed as SagaFailed
    from saga_workers.participant.http_participant import http_app as http_app
    from saga_workers.worker.plugin import SagaPlugin as SagaPlugin

__all__ = [
    "Absent",
    "AlreadyCompensated",
    "AttemptOver",
    "BatchStep",
    "Client",
    "Command",
    "Done",
    "Event",
    "Item",
    "Message",
    "Rejected",
    "SagaError",
    "SagaFailed",
    "SagaPlugin",
    "Step",
    "Unknown",
    "action",
    "bridge",
    "consumer",
    "http_app",
    "participant",
    "read_pointer",
    "write_batch_once",
]

# The only references from this lowest-layer package to higher ones: users import from `sagas` alone.
_LATER = {
    "Client": "saga_workers.client",
    "SagaFailed": "saga_workers.client",
    "SagaPlugin": "saga_workers.worker.plugin",
    "http_app": "saga_workers.participant.http_participant",
    "read_pointer": "saga_spark.sinks.parquet.parquet_pointer",
    "write_batch_once": "saga_spark.job.streaming",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'sagas' has no attribute {name!r}")
