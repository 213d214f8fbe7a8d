"""The settings of a project: saga.toml, the environment, and the addresses that ``saga dev up`` wrote."""

from __future__ import annotations

from sagas.settings.kafka import KafkaSettings
from sagas.settings.loader import find_project, load_settings
from sagas.settings.model import Connection, Settings, TemporalSettings, Tls, WorkerSettings
from sagas.settings.secrets import Secret

__all__ = [
    "Connection",
    "KafkaSettings",
    "Secret",
    "Settings",
    "TemporalSettings",
    "Tls",
    "WorkerSettings",
    "find_project",
    "load_settings",
]
