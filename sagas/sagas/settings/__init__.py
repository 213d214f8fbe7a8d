"""The settings of a project: saga.toml, the environment, and the addresses that ``saga dev up`` wrote.

The models, and pydantic with them, are imported on first use: `saga --help` reads no settings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagas.settings.connections import HttpService as HttpService
    from sagas.settings.connections import SqlConnection as SqlConnection
    from sagas.settings.kafka import KafkaSettings as KafkaSettings
    from sagas.settings.loader import load_settings as load_settings
    from sagas.settings.model import Settings as Settings
    from sagas.settings.secrets import Secret as Secret

_MODULES = {
    "HttpService": "connections",
    "KafkaSettings": "kafka",
    "Secret": "secrets",
    "Settings": "model",
    "SqlConnection": "connections",
    "load_settings": "loader",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
