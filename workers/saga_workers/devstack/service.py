"""The interface of a service of the embedded stack."""

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
from sagas.text.shell import saga_command


class NotInstalledError(SagaError):
    """A part of the embedded stack is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed", help="pip install 'saga-orchestrator[embedded]'")


@dataclass(frozen=True, slots=True)
class Service(ABC):
    """One program of the embedded stack.

    ``name``: its name in `saga dev logs`. ``after``: services that must be ready before. ``ports``: the name of each
    port → the preferred one (None: any). ``start_timeout`` and ``grace``: seconds until it must be ready, and to end.
    ``start_attempts``: how often a start is attempted if the process ends at once.
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
        """Create what must exist before the first start, idempotently; returns the new ``data``."""
        return data

    @abstractmethod
    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch: ...

    @abstractmethod
    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        """Return what is missing until the service is ready; None if it is. Must not block for long."""

    def reason(self, ports: Mapping[str, int]) -> str | None:
        """Return what the running service itself says about why it is not ready; None if it says nothing."""
        return None

    def on_ready(self, ports: Mapping[str, int], data: Mapping[str, str]) -> None:
        """Do what is necessary each time the service has become ready; idempotent."""
        return

    def wipe(self) -> None:
        """Remove what the service has made outside of its data folder; idempotent. Its process has ended."""
        return

    def start_help(self) -> str:
        """Return what to do after the process has ended during its start."""
        return f"{saga_command('dev', 'logs', self.name)}    ({self.folder.log_file(self.name)})"

    @abstractmethod
    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        """The addresses of the service, for `dev status`."""

    def settings_tables(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """The tables of the service in ``.saga/dev.toml``."""
        return {}


def http_get(port: int, path: str, *, seconds: float = 2.0) -> tuple[int, bytes]:
    """GET from a service on this machine, never through a proxy; (0, b"") if it does not answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
