"""Child processes for crash tests: forked from one interpreter with slow imports preloaded; each may be killed."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

TIMEOUT = 120.0
"""Seconds until all is imported."""

PRELOADED = (
    "psycopg",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "saga_spark.sinks.iceberg.iceberg_sink",
    "saga_spark.sinks.parquet.parquet_sink",
    "saga_spark.sinks.postgresql.postgresql_sink",
)

# Requests are lines on the standard input; end of file is the end. Each answer is about one child.
SERVER = """
import importlib, json, os, select, sys, traceback

for name in sys.argv[1:]:
    importlib.import_module(name)

def say(**what):
    os.write(1, json.dumps(what).encode() + b"\\n")

def live(program, output):
    try:
        to = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(to, 1)
        os.dup2(to, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        exec(compile(program, "<child>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

children, rest = set(), b""
while True:
    if select.select([0], [], [], 0.01 if children else None)[0]:
        got = os.read(0, 2**16)
        if not got:
            os._exit(0)
        *lines, rest = (rest + got).split(b"\\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if not pid:
                live(request["program"], request["output"])
            children.add(pid)
            say(born=request["output"], pid=pid)
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if not pid:
            break
        if os.WIFSTOPPED(status):
            say(pid=pid, stopped=True)
        else:
            children.discard(pid)
            say(pid=pid, code=os.waitstatus_to_exitcode(status))
"""


class Child:
    """One running program."""

    def __init__(self, fork_server: ForkServer, pid: int, output: Path) -> None:
        self.pid = pid
        self._server = fork_server
        self._output = output

    def wait_until_stopped(self, timeout: float) -> None:
        """Until it has stopped itself; AssertionError: it ended instead, or did nothing."""
        self._server.wait(lambda: self.pid in self._server.stopped or self.pid in self._server.codes, timeout)
        assert self.pid not in self._server.codes, f"it ended instead: {self._output.read_text()}"
        assert self.pid in self._server.stopped, "it did not stop"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def outcome(self, timeout: float) -> tuple[int, str]:
        """Exit code (negative: the signal) and output. A child that does not exit is killed: AssertionError."""
        if not self._server.wait(lambda: self.pid in self._server.codes, timeout):
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"it did not exit; output: {self._output.read_text()}")
        try:
            return self._server.codes[self.pid], self._output.read_text()
        finally:
            self._output.unlink()


class ForkServer:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *PRELOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._born: dict[str, int] = {}
        self.stopped: set[int] = set()
        self.codes: dict[int, int] = {}
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, program: str) -> Child:
        assert self._process.stdin is not None
        handle, output = tempfile.mkstemp(prefix="child-")
        os.close(handle)
        self._process.stdin.write(json.dumps({"program": program, "output": output}).encode() + b"\n")
        self._process.stdin.flush()
        assert self.wait(lambda: output in self._born, TIMEOUT), "the fork server does not answer"
        return Child(self, self._born[output], Path(output))

    def wait(self, until: Callable[[], bool], timeout: float) -> bool:
        """False: it did not come true in time."""
        with self._news:
            return self._news.wait_for(until, timeout)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reported = json.loads(line)
            with self._news:
                if "born" in reported:
                    self._born[reported["born"]] = reported["pid"]
                elif "stopped" in reported:
                    self.stopped.add(reported["pid"])
                else:
                    self.codes[reported["pid"]] = reported["code"]
                self._news.notify_all()


@functools.cache
def fork_server() -> ForkServer:
    """One per process; it ends with the process, whose pipe is its standard input."""
    return ForkServer()
