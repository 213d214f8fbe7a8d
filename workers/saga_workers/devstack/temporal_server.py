"""Temporal's development server with its Web UI, on a SQLite file."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from saga_workers.devstack.os_process import Launch, environment_without
from saga_workers.devstack.ports import HOST
from saga_workers.devstack.service import NotInstalledError, Service, http_get
from saga_workers.devstack.start_failure import cause
from saga_workers.temporal.search_attributes import SEARCH_ATTRIBUTES
from sagas.errors import SagaError
from sagas.settings.temporal import DEFAULT_NAMESPACE
from sagas.text.exact_json import decode_json

RETENTION_SECONDS = 30 * 24 * 3600

_DYNAMIC_CONFIG = (
    # Without this the server delays each workflow task by up to 50 ms.
    "history.transferProcessorMaxPollRPS=100000",
    # A new search attribute can be used at once.
    "system.forceSearchAttributesCacheRefreshOnRead=true",
)


class TemporalService(Service):
    name: ClassVar[str] = "temporal"

    def ports(self) -> Mapping[str, int | None]:
        # The usual ports, so that Temporal's own CLI finds it too, unless the settings name one.
        port = local_port(self.settings.temporal.address) if not self.settings.temporal.embedded else None
        return {"port": port or 7233, "ui_port": 8233, "http_port": None, "metrics_port": None}

    @property
    def namespace(self) -> str:
        return self.settings.temporal.namespace or DEFAULT_NAMESPACE

    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch:
        folder = self.folder.data_folder(self.name)
        folder.mkdir(mode=0o700, exist_ok=True)
        argv = [
            find_temporal(), "server", "start-dev", "--log-level", "warn",
            "--ip", HOST, "--port", str(ports["port"]), "--http-port", str(ports["http_port"]),
            "--ui-ip", HOST, "--ui-port", str(ports["ui_port"]), "--metrics-port", str(ports["metrics_port"]),
            "--db-filename", str(folder / "temporal.db"),
            # The default journal halves the throughput; this one survives a killed process as well.
            "--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL",
            "--namespace", self.namespace,
        ]  # fmt: skip
        for setting in (*_DYNAMIC_CONFIG, closed_http_api()):
            argv += ["--dynamic-config-value", setting]
        for attribute, kind in SEARCH_ATTRIBUTES.items():
            argv += ["--search-attribute", f"{attribute}={kind}"]
        return Launch(argv, folder, environment_without("TEMPORAL_"))

    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        # A server whose HTTP API is open was started with another configuration: it is restarted.
        if http_get(ports["http_port"], f"/api/v1/namespaces/{self.namespace}")[0] != 403:
            return "the server"
        # The UI's page is served a little before the API behind it.
        return None if self._describe_namespace(ports) is not None else "the Web UI"

    def _describe_namespace(self, ports: Mapping[str, int]) -> dict[str, Any] | None:
        status, body = http_get(ports["ui_port"], f"/api/v1/namespaces/{self.namespace}")
        return decode_json(body) if status == 200 else None

    def on_ready(self, ports: Mapping[str, int], data: Mapping[str, str]) -> None:
        """Keep closed runs for 30 days; the server's default is one day."""
        namespace = self._describe_namespace(ports) or {}
        if namespace.get("config", {}).get("workflowExecutionRetentionTtl") == f"{RETENTION_SECONDS}s":
            return
        argv = [
            find_temporal(), "operator", "namespace", "update", "--namespace", self.namespace,
            "--address", f"{HOST}:{ports['port']}", "--retention", f"{RETENTION_SECONDS}s",
            "--disable-config-file", "--disable-config-env",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment_without("TEMPORAL_"))
        if done.returncode:
            raise SagaError(f"Temporal did not accept the retention of 30 days: {cause(done.stderr)}")

    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        return {"address": f"{HOST}:{ports['port']}", "web_ui": f"http://{HOST}:{ports['ui_port']}"}

    def settings_tables(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {"temporal": {**self.addresses(ports, data), "namespace": self.namespace}}


def closed_http_api() -> str:
    """The dynamic configuration that closes the HTTP API to web pages: the only allowed host is a random name.

    This API has no authentication, and takes a plain POST from any web page in a browser on this machine, which cannot
    know that name. It is not a secret from other users of the machine: they see the command line of the server, and
    reach its gRPC port anyway. The Web UI does not use this API, and requires a token of its own for every change.
    """
    return f'frontend.httpAllowedHosts=["{secrets.token_hex(16)}"]'


def local_port(address: str | None) -> int | None:
    """The port of an address on this machine; None for another machine."""
    host, _, port = (address or "").rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdigit() else None


def find_temporal() -> str:
    """The ``temporal`` program installed next to this Python, else the one on the PATH.

    Raises:
        NotInstalledError: there is none.
    """
    installed = Path(sys.executable).with_name("temporal")
    program = str(installed) if installed.exists() else shutil.which("temporal")
    if not program:
        raise NotInstalledError("Temporal's development server")
    return program
