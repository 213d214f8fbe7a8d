"""The runner process: reads messages, runs tasks in threads, sends heartbeats, and exits with its worker."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from saga_spark.job_errors import RunnerLost, to_disk_error, to_job_error
from saga_spark.runner.runner_protocol import (
    HEARTBEAT_INTERVAL,
    SourcesChanged,
    TaskCancelled,
    decode_message,
    encode_message,
    error_to_json,
    settings_from_json,
)
from saga_spark.runner.spark_session import create_sessions
from saga_spark.runner.task_context import TaskContext
from saga_spark.settings import SparkSettings
from sagas.errors import Unavailable
from sagas.settings.masking import mask
from sagas.text.author_values import named_error
from sagas.text.masked_texts import masking
from sagas.text.own_frames import keep_own_frames

JVM_EXIT_TIMEOUT = 5.0
"""Seconds between a broken connection and the exit of the JVM that broke it."""


class RunnerServer:
    """All runs of one process. Messages are written to ``descriptor``, whole lines at a time."""

    def __init__(self, settings: SparkSettings, descriptor: int) -> None:
        self._settings = settings
        self._descriptor = descriptor
        self._writing = threading.Lock()
        self._sessions = create_sessions(settings)
        self._contexts: dict[int, TaskContext] = {}

    def handle(self, message: dict[str, Any]) -> None:
        if "cancel" in message:
            context = self._contexts.get(message["cancel"])
            if context is not None:
                threading.Thread(target=context.cancel, daemon=True).start()
            return
        try:
            task = find_task(message["task"])  # in the reader thread, as are all imports of this project
        except Exception as error:  # noqa: BLE001 - the run cannot start; the error is its answer
            print(mask(traceback.format_exc()), end="", file=sys.stderr)
            unavailable = Unavailable(f"the Spark runner cannot load the task {message['task']}: {named_error(error)}")
            self.send({"answer": message["run"], "error": error_to_json(unavailable)})
            return
        context = TaskContext(message["run"], message["tag"], self._settings, self._sessions, self.send)
        self._contexts[context.number] = context
        run = masking(message["sensitive_texts"])(self._run_task)
        threading.Thread(target=run, args=(context, task, message), name=context.tag, daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        data = encode_message(message)
        with self._writing:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def give_up(self, loss: RunnerLost) -> NoReturn:
        self.send({"lost": str(loss), "memory": loss.memory})
        exit_with_children(70)

    def send_heartbeats(self) -> None:
        """Send forever, every second, a heartbeat if Spark responds too, and the progress of each run."""
        last_progress: dict[int, dict[str, Any]] = {}
        timer = threading.Event()
        for number in range(sys.maxsize):
            try:
                self._check_spark(number, last_progress)
            except Exception:  # noqa: BLE001 - the JVM is exiting: the next check finds it gone, or heartbeats stop
                print(mask(traceback.format_exc()), end="", file=sys.stderr)
            timer.wait(HEARTBEAT_INTERVAL)

    def _check_spark(self, number: int, last_progress: dict[int, dict[str, Any]]) -> None:
        ended = self._sessions.exit_reason(0)
        if ended is not None:
            self.give_up(ended)
        self._sessions.ping()
        self.send({"beat": number})
        for key in last_progress.keys() - self._contexts.keys():
            del last_progress[key]
        for run in list(self._contexts.values()):
            if run.open_session is None:
                continue
            values = self._sessions.progress(run.open_session, run.tag)
            if values and last_progress.get(run.number) != values:
                last_progress[run.number] = values
                run.progress(values)
        lost = self._sessions.cluster_loss()
        if lost is not None:
            self.give_up(lost)

    def _run_task(self, context: TaskContext, task: Task, message: dict[str, Any]) -> None:
        context.begin()
        try:
            answer: dict[str, Any] = {"result": task(context, message["request"])}
        except BaseException as error:  # noqa: BLE001 - every outcome of a run is reported
            if not isinstance(error, TaskCancelled | SourcesChanged):
                print(mask(_traceback(error)), end="", file=sys.stderr)
            answer = {"error": error_to_json(self._explain(context, error, message["task"]))}
        finally:
            self._contexts.pop(context.number, None)
        try:
            context.end()
        except Exception:  # noqa: BLE001 - the session is unusable; the next heartbeat finds the cause
            print(mask(traceback.format_exc()), end="", file=sys.stderr)
        self.send({"answer": context.number, **answer})

    def _explain(self, context: TaskContext, error: BaseException, task: str) -> BaseException:
        """The error to report. A lost JVM makes any call fail in any way; Spark's own errors are translated."""
        if context.cancelled:
            return TaskCancelled()
        ended = self._sessions.exit_reason(JVM_EXIT_TIMEOUT if is_connection_error(error) else 0)
        if ended is not None:
            return ended
        if isinstance(error, OSError):
            return to_disk_error(error, TASK_LABELS.get(task, task)) or error
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            return error
        return to_job_error(error, f"the task {task}")


def import_spark(settings: SparkSettings) -> None:
    """Import PySpark before any run: its modules import each other, and two threads that start concurrently with
    different modules find them partially initialised. Raises ImportError, or whatever a broken installation raises."""
    for name in ("pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"):
        importlib.import_module(name)
    if settings.remote:
        with contextlib.suppress(ImportError):  # a dependency of Connect is missing: the first session reports which
            importlib.import_module("pyspark.sql.connect.session")


def _traceback(error: BaseException) -> str:
    """The traceback of a job in the author's own files; that of the engine if the job has no part in it."""
    whole = "".join(traceback.format_exception(error))
    keep_own_frames(error)
    return whole if error.__traceback__ is None else "".join(traceback.format_exception(error))


def is_connection_error(error: BaseException | None) -> bool:
    """Return whether this error originates from a broken connection to the JVM."""
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
            return True
        error = error.__cause__ or error.__context__
    return False


def exit_with_children(code: int) -> NoReturn:
    """Exit immediately, killing all child processes: a JVM that shuts down in an orderly way could still commit."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, required=True)
    descriptor: int = parser.parse_args().answers
    os.set_inheritable(descriptor, False)
    messages = os.fdopen(os.dup(0), "rb")  # not inheritable: no child keeps the worker's pipe open
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the memory of the runner and its JVM holds secrets
    settings = settings_from_json(decode_message(messages.readline())["settings"])
    server = RunnerServer(settings, descriptor)
    threading.Thread(target=server.send_heartbeats, name="beat", daemon=True).start()
    try:
        import_spark(settings)
    except Exception as error:  # noqa: BLE001 - reported to the worker; details are in its log
        print(mask(traceback.format_exc()), end="", file=sys.stderr)
        server.give_up(RunnerLost(f"PySpark cannot be imported: {named_error(error)}"))
    server.send({"ready": True})
    for line in messages:
        server.handle(decode_message(line))
    exit_with_children(0)


# Tasks: functions ``(context: TaskContext, request: dict) -> dict``, with requests and results of plain JSON.
Task = Callable[[TaskContext, dict[str, Any]], dict[str, Any]]

TASKS = {
    "freeze": "saga_spark.inputs.frozen_inputs:freeze_inputs",
    "stage": "saga_spark.staging.stage_task:stage_outputs",
    "audit": "saga_spark.audit.audit_task:audit_outputs",
    "reconcile": "saga_spark.reconcile.comparison:compare_inputs",
}
"""Name → ``module:function``, imported on first use, so that unused tasks cost nothing."""

TASK_LABELS = {"freeze": "reading the inputs", "stage": "the job", "audit": "the audit"}
"""Names of tasks in messages."""


def find_task(name: str) -> Task:
    """Raises KeyError if the task does not exist."""
    module, _, function = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
