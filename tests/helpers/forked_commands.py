"""`saga` commands as processes that start immediately: forked from one that has imported what they need.

Each is an ordinary process with its own id and group, and reacts to the same signals. This saves most of the CPU time
of a Python start, and the tests start hundreds.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PRELOADED = (
    "saga_cli.main",
    "saga_cli.commands.operate.relay",
    "saga_cli.commands.operate.trigger",
    "saga_cli.commands.operate.worker",
    "confluent_kafka.admin",
    "psycopg_pool",
    "pydantic.type_adapter",
    "sqlalchemy.dialects.postgresql.psycopg",
    "temporalio.worker",
    "typer._adapters",
    "saga_workers.runtime.logs",
    "saga_workers.relay.check_back",
    "saga_workers.relay.relay_process",
    "saga_workers.worker.worker_process",
    "saga_workers.trigger.trigger_process",
    "tests.helpers.freeze_gc",
)

FORK_SERVER = multiprocessing.get_context("forkserver")
"""For all processes that tests fork: what the last caller lets it preload is all that any of them finds imported."""

FORK_SERVER.set_forkserver_preload(list(PRELOADED))
_one_at_a_time = threading.Lock()
"""An exit code can be read once, and each start looks at those of all."""


class ForkedCommand:
    """`saga` with these arguments; its output is appended to ``log``. Has the interface of ``subprocess.Popen``.

    ``first``, a module-level function, is called in it before anything else. ``errors`` is another file for its
    standard error.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        log: Path,
        first: Callable[[], None] | None = None,
        errors: Path | None = None,
    ) -> None:
        path = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *_path_of_a_new_python()]
        given = (list(words), str(folder), dict(env), path, str(log), str(errors or log), first)
        self._process = FORK_SERVER.Process(target=_live, args=given, daemon=True)
        with _one_at_a_time:
            self._process.start()
        while self.poll() is None and not self._leads_a_group():
            time.sleep(0.001)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        with _one_at_a_time:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("saga", timeout or 0.0)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def _leads_a_group(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            return os.getpgid(self.pid) == self.pid
        return False


def run_command(
    words: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    first: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, as ``subprocess.run`` does with ``capture_output`` and ``text``."""
    with tempfile.TemporaryDirectory(prefix="saga-command-") as name:
        out, errors = Path(name, "out"), Path(name, "errors")
        command = ForkedCommand(words, folder, os.environ if env is None else env, out, first, errors)
        try:
            code = command.wait(timeout)
        except BaseException:
            os.killpg(command.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(["saga", *words], code, out.read_text("utf-8"), errors.read_text("utf-8"))


def _live(
    words: list[str],
    folder: str,
    env: dict[str, str],
    path: list[str],
    log: str,
    errors: str,
    first: Callable[[], None] | None,
) -> None:
    os.setsid()
    write = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, log, write), (2, errors, write)):
        opened = os.open(name, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing has put another there
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = path
    sys.argv = ["saga", *words]
    if first is not None:
        first()
    from saga_cli.main import main

    main()


@functools.cache
def _path_of_a_new_python() -> list[str]:
    """Without the folders of other projects, which the tests have read in their own process."""
    program = [sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
    return json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
