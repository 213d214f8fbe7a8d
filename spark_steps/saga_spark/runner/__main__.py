"""The runner process: reads messages, runs tasks in threads, tells that it is alive, and ends with its worker."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from saga_spark.errors import RunnerLost
from saga_spark.problems import disk_refuses, explain
from saga_spark.runner.messages import BEAT, Cancelled, Stale, decode, encode, error_to_json, settings_from_json
from saga_spark.runner.run import Run
from saga_spark.runner.session import sessions_for
from saga_spark.runner.tasks import WORDS, Task, find_task
from saga_spark.settings import SparkSettings
from sagas.errors import Unavailable

JVM_PATIENCE = 5.0
"""Seconds between a connection that breaks and the end of the JVM that broke it."""


class Server:
    """All runs of one process. Answers go to ``descriptor``, whole lines at a time."""

    def __init__(self, settings: SparkSettings, descriptor: int) -> None:
        self._settings = settings
        self._descriptor = descriptor
        self._writing = threading.Lock()
        self._sessions = sessions_for(settings)
        self._runs: dict[int, Run] = {}

    def handle(self, message: dict[str, Any]) -> None:
        if "cancel" in message:
            run = self._runs.get(message["cancel"])
            if run is not None:
                threading.Thread(target=run.cancel, daemon=True).start()
            return
        try:
            task = find_task(message["task"])  # in this one thread, as all imports of ours
        except Exception as error:  # noqa: BLE001 - no run can begin here; the worker hears why
            traceback.print_exc()
            unavailable = Unavailable(f"the Spark runner cannot load the task {message['task']}: {named(error)}")
            self.say({"answer": message["run"], "error": error_to_json(unavailable)})
            return
        run = Run(message["run"], message["tag"], self._settings, self._sessions, self.say)
        self._runs[run.number] = run
        threading.Thread(target=self._perform, args=(run, task, message), name=run.tag, daemon=True).start()

    def say(self, message: dict[str, Any]) -> None:
        data = encode(message)
        with self._writing:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def give_up(self, why: RunnerLost) -> NoReturn:
        self.say({"lost": str(why), "memory": why.memory})
        end(70)

    def beat(self) -> None:
        """For ever: a sign of life each second, if Spark lives too, and the progress of each run."""
        told: dict[int, dict[str, Any]] = {}
        pause = threading.Event()
        for number in range(sys.maxsize):
            try:
                self._look(number, told)
            except Exception:  # noqa: BLE001 - the JVM is going: the next look finds it gone, or we fall silent
                traceback.print_exc()
            pause.wait(BEAT)

    def _look(self, number: int, told: dict[int, dict[str, Any]]) -> None:
        ended = self._sessions.ended(0)
        if ended is not None:
            self.give_up(ended)
        self._sessions.ping()
        self.say({"beat": number})
        for key in told.keys() - self._runs.keys():
            del told[key]
        for run in list(self._runs.values()):
            if run.session is None:
                continue
            values = self._sessions.progress(run.session, run.tag)
            if values and told.get(run.number) != values:
                told[run.number] = values
                run.progress(values)

    def _perform(self, run: Run, task: Task, message: dict[str, Any]) -> None:
        run.begin()
        try:
            answer: dict[str, Any] = {"result": task(run, message["request"])}
        except BaseException as error:  # noqa: BLE001 - every end of a run is an answer
            if not isinstance(error, Cancelled | Stale):
                traceback.print_exc()
            answer = {"error": error_to_json(self._explained(run, error, message["task"]))}
        finally:
            self._runs.pop(run.number, None)
        try:
            run.end()
        except Exception:  # noqa: BLE001 - the session is of no use any more; the next beat finds out why
            traceback.print_exc()
        self.say({"answer": run.number, **answer})

    def _explained(self, run: Run, error: BaseException, task: str) -> BaseException:
        """A JVM that was lost makes any call fail in any way; what Spark raised is explained if no task has done so."""
        if run.cancelled:
            return Cancelled()
        ended = self._sessions.ended(JVM_PATIENCE if broken_connection(error) else 0)
        if ended is not None:
            return ended
        if isinstance(error, OSError):
            return disk_refuses(error, WORDS.get(task, task)) or error
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            return error
        return explain(error, f"the task {task}")


def import_spark(settings: SparkSettings) -> None:
    """Before any run: the modules of PySpark import each other, and two threads that begin with different ones at one
    moment find them unfinished. Raises ImportError, or whatever a broken installation raises."""
    for name in ("pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"):
        importlib.import_module(name)
    if settings.remote:
        with contextlib.suppress(ImportError):  # a package of Connect's is missing: the first session says which
            importlib.import_module("pyspark.sql.connect.session")


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def broken_connection(error: BaseException | None) -> bool:
    """Has this error begun with a connection to the JVM that broke?"""
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
            return True
        error = error.__cause__ or error.__context__
    return False


def end(code: int) -> NoReturn:
    """At once, with everything this process has started: a JVM that may take leave could still commit."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, required=True)
    descriptor: int = parser.parse_args().answers
    os.set_inheritable(descriptor, False)
    messages = os.fdopen(os.dup(0), "rb")  # not inheritable: no child of ours keeps the worker's pipe open
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    settings = settings_from_json(decode(messages.readline())["settings"])
    server = Server(settings, descriptor)
    threading.Thread(target=server.beat, name="beat", daemon=True).start()
    try:
        import_spark(settings)
    except Exception as error:  # noqa: BLE001 - the worker hears it, and its log is the place for the rest
        traceback.print_exc()
        server.give_up(RunnerLost(f"PySpark cannot be imported: {named(error)}"))
    server.say({"ready": True})
    for line in messages:
        server.handle(decode(line))
    end(0)


if __name__ == "__main__":
    main()
