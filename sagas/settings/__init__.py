"""Where things are and how to reach them: saga.toml, the environment, and what ``saga dev up`` started."""

from __future__ import annotations

from sagas.settings.load import find_project, load_settings
from sagas.settings.model import Connection, Secret, Settings, TemporalSettings, Tls

__all__ = ["Connection", "Secret", "Settings", "TemporalSettings", "Tls", "find_project", "load_settings"]
