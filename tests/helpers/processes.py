"""Real processes for tests: started in their own folder, frozen, killed and started again by their process id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from saga_workers.devstack.ports import HOST
from saga_workers.devstack.service import http_get
from saga_workers.devstack.temporal_server import SEARCH_ATTRIBUTES, closed_http_api, find_temporal
from tests.helpers.forked_commands import ForkedCommand
from tests.helpers.free_ports import free_port, free_ports

TIMEOUT = 180.0
"""Seconds that a start may take: the machine may be busy with other tests."""


class Process:
    """A child process that can be killed, frozen and started again with the same command."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._argv, self._folder, self._ready = name, list(argv), folder, ready
        self._env = dict(os.environ if env is None else env)
        self._child: subprocess.Popen[bytes] | ForkedCommand | None = None
        self.log = folder / f"{name}.log"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, timeout: float = TIMEOUT) -> Self:
        self.launch()
        self.wait(timeout)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def exit_code(self) -> int:
        """The exit code of a process that has ended: minus the number of the signal that ended it, if one did."""
        assert self._child is not None
        return self._child.wait()

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                cwd=self._folder,
                env=self._env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self, timeout: float = TIMEOUT) -> None:
        end = time.monotonic() + timeout
        while True:
            ready = self._ready()
            if not self.running:
                raise AssertionError(f"{self.name} ended at once:\n{self.tail()}")
            if ready:
                return
            if time.monotonic() > end:
                raise AssertionError(f"{self.name} was not ready after {timeout} s:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait until it is gone."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def freeze(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def stop(self, timeout: float = 40.0) -> int:
        """SIGTERM, and the exit code."""
        assert self._child is not None
        if self._child.poll() is None:
            os.killpg(self.pid, signal.SIGCONT)
            self._child.terminate()
            try:
                self._child.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.wait()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class TemporalServer(Process):
    """The real server on a file of its own; `kill` and `start` keep its data."""

    def __init__(self, folder: Path, *, extra: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports("port", "ui", "http", "metrics")
        self.address = f"{HOST}:{ports['port']}"
        self.web_ui = f"http://{HOST}:{ports['ui']}"
        argv = [find_temporal(), "server", "start-dev", "--log-level", "error", "--ip", HOST]
        argv += ["--port", str(ports["port"]), "--http-port", str(ports["http"]), "--ui-ip", HOST]
        argv += ["--ui-port", str(ports["ui"]), "--metrics-port", str(ports["metrics"])]
        argv += ["--db-filename", str(folder / "temporal.db")]
        argv += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
        for name, kind in SEARCH_ATTRIBUTES.items():
            argv += ["--search-attribute", f"{name}={kind}"]
        for setting in (
            "history.transferProcessorMaxPollRPS=100000",
            # A run is deleted when the queue has recorded that its end was processed, otherwise every 30 seconds.
            'history.transferProcessorUpdateAckInterval="200ms"',
            # Each test has task queues of its own, and each partition of one costs processor time to load and to keep.
            "matching.numTaskqueueReadPartitions=1",
            "matching.numTaskqueueWritePartitions=1",
            # The same for what it does with each of them from time to time: 600 cost 0.05 seconds per second otherwise.
            'matching.updateAckInterval="10m"',
            'matching.ephemeralDataUpdateInterval="1h"',
            'matching.backlogMetricsEmitInterval="1h"',
            "metrics.breakdownByTaskQueue=false",
            "metrics.breakdownByPartition=false",
            "system.forceSearchAttributesCacheRefreshOnRead=true",
            # By default five, which take half a minute.
            "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=2",
            closed_http_api(),
            *extra,
        ):
            argv += ["--dynamic-config-value", setting]

        def ready() -> bool:
            return http_get(ports["ui"], "/api/v1/namespaces/default")[0] == 200

        env = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        # Memory for processor time, up to a limit: it collects garbage less often. And for one thread of Go the kernel
        # switches less; each process of the tests has a server.
        env |= {"GOGC": "400", "GOMEMLIMIT": "384MiB", "GOMAXPROCS": "1"}
        super().__init__("temporal", argv, folder, ready, env)


class CommandProcess(Process):
    """A long-running `saga` command for a project folder, as a process of its own. ``env`` adds variables.

    ``health_port`` serves /livez, /readyz and /metrics; ``words`` are the command and its options. ``fresh``: a new
    Python process runs it, which has not imported the engine; otherwise it is forked and calls ``first`` before.
    """

    def __init__(
        self,
        name: str,
        project: Path,
        *words: str,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
        first: Callable[[], None] | None = None,
    ) -> None:
        port = self.health_port = free_port()
        verb, *options = words
        argv = [verb, "--health", f"{HOST}:{port}", *options]
        if fresh:
            argv = [sys.executable, "-P", "-m", "saga_cli.main", *argv]
        own = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        super().__init__(name, argv, project, lambda: http_get(port, "/readyz")[0] == 200, own)
        self._fresh, self._first = fresh, first

    def launch(self) -> None:
        if self._fresh:
            super().launch()
        else:
            self._child = ForkedCommand(self._argv, self._folder, self._env, self.log, self._first)

    def ready_says(self) -> str:
        return http_get(self.health_port, "/readyz")[1].decode()


class WorkerProcess(CommandProcess):
    """`saga worker`; ``options`` are added to the command."""

    def __init__(
        self,
        name: str,
        project: Path,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        grace: str = "5s",
        fresh: bool = False,
    ) -> None:
        super().__init__(name, project, "worker", "--grace", grace, *options, env=env, fresh=fresh)


class RelayProcess(CommandProcess):
    """`saga relay`."""

    def __init__(
        self,
        name: str,
        project: Path,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        first: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name, project, "relay", "--grace", "5s", *options, env=env, first=first)


class TriggerProcess(CommandProcess):
    """`saga trigger`."""

    def __init__(self, name: str, project: Path, *options: str) -> None:
        super().__init__(name, project, "trigger", *options)
