"""What a part of the embedded stack has to say about itself."""

from __future__ import annotations

import http.client
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from saga_workers.devstack.dev_folder import DevFolder
from saga_workers.devstack.os_process import Launch
from saga_workers.devstack.ports import HOST
from sagas.errors import SagaError
from sagas.settings import Settings


class NotInstalledError(SagaError):
    """A part of the embedded stack is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed here.", help="pip install 'saga-orchestrator[embedded]'")


@dataclass(frozen=True, slots=True)
class Service(ABC):
    """One program of the embedded stack.

    ``name`` is the word after `saga dev logs`; ``after`` names services that must be ready before; ``ports``
    maps the name of each port to the one preferred (None: any); ``patience`` is how many seconds it may need
    until it is ready, ``grace`` how many to end; ``attempts``: how often a start that ends at once is repeated.
    """

    settings: Settings
    folder: DevFolder

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()
    start_timeout: ClassVar[float] = 90.0
    grace: ClassVar[float] = 10.0
    start_attempts: ClassVar[int] = 4
    stop_signal: ClassVar[int] = signal.SIGTERM

    @abstractmethod
    def ports(self) -> Mapping[str, int | None]: ...

    def prepare(self, data: Mapping[str, str]) -> Mapping[str, str]:
        """Make what has to exist before the first start (and nothing on the next); returns the new ``data``."""
        return data

    @abstractmethod
    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch: ...

    @abstractmethod
    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        """What is still missing until the service is ready, None when it is. Must not block for long."""

    def on_ready(self, ports: Mapping[str, int], data: Mapping[str, str]) -> None:
        """What has to be done each time it is ready: repeatable."""
        return

    @abstractmethod
    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        """Where people and programs find it, for `dev status`."""

    def settings_tables(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Its tables in ``.saga/dev.toml``."""
        return {}


def http_get(port: int, path: str, *, seconds: float = 2.0) -> tuple[int, bytes]:
    """Ask a service on this machine; (0, b"") when it does not answer. Never through a proxy."""
    connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
