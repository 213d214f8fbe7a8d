"""The processes of one peer: servers, the program that starts the sagas, and the CPU of all of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.measure import cpu_seconds

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def running(
    words: Sequence[str], log: Path, *, port: int | None = None, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server; yields it when something listens at its port, or, without one, when it has printed a line."""
    with log.open("wb") as errors:
        output, input = (subprocess.PIPE, subprocess.PIPE) if port is None else (errors, subprocess.DEVNULL)
        env = {**os.environ, **environment}
        process = subprocess.Popen(words, cwd=ROOT, stdin=input, stdout=output, stderr=errors, env=env)
    try:
        if port is None:
            assert process.stdout is not None
            assert process.stdout.readline(), log.read_text()
        else:
            _await_port(process, port, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at port {port}: {log.read_text()}")


@contextlib.contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes for a while: what a peer does not use costs it nothing."""
    for pid in pids:
        psutil.Process(pid).suspend()
    try:
        yield
    finally:
        for pid in pids:
            psutil.Process(pid).resume()


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The sagas of a run, as their program tells. ``cpu``: seconds of all processes that took part."""

    seconds: float
    latencies: list[float]
    succeeded: list[bool]
    cpu: float


class Program:
    """The program that starts the sagas of a peer; see :mod:`benchmarks.peers.program`.

    ``servers``: the process ids of the servers that work for it.
    """

    def __init__(self, process: subprocess.Popen[bytes], servers: Sequence[int]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._pids = [process.pid, *servers]

    def run(self, run: str, concurrency: int, payments: Sequence[Sequence[Any]]) -> RunAnswer:
        """Run a saga for each payment, ``concurrency`` at once."""
        job = json.dumps({"run": run, "concurrency": concurrency, "payments": payments})
        before = sum(map(cpu_seconds, self._pids))
        self._input.write(f"{job}\n".encode())
        self._input.flush()
        answer = json.loads(self._output.readline() or '{"seconds": null}')
        assert answer["seconds"] is not None, "the program of the peer has ended"
        cpu = sum(map(cpu_seconds, self._pids)) - before
        return RunAnswer(answer["seconds"], answer["latencies"], answer["succeeded"], cpu)
