"""What authors of sagas import.

    from sagas import action, Step, Rejected

Everything else in this package is the engine. Names that need Temporal are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sagas.actions import action, check_own_packages
from sagas.consumers import bridge, consumer
from sagas.errors import AlreadyCompensated, Rejected, SagaError
from sagas.message import Message
from sagas.probing import Absent, Done, Unknown
from sagas.step import Event, Step

if TYPE_CHECKING:
    from workers.client import Client as Client
    from workers.plugin import SagaPlugin as SagaPlugin

__all__ = [
    "Absent",
    "AlreadyCompensated",
    "Client",
    "Done",
    "Event",
    "Message",
    "Rejected",
    "SagaError",
    "SagaPlugin",
    "Step",
    "Unknown",
    "action",
    "bridge",
    "consumer",
]

# The one place where the bottom names the top: the public import is `sagas` alone.
_LATER = {"SagaPlugin": "workers.plugin", "Client": "workers.client"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        try:
            return getattr(importlib.import_module(_LATER[name]), name)
        except ImportError:
            check_own_packages()  # says which file of the user's has the name of a package of ours, if that is why
            raise
    raise AttributeError(f"module 'sagas' has no attribute {name!r}")
