"""The warm Spark session: one context (or Spark Connect server), with a separate session for each run."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from saga_spark.job_errors import RunnerLost, error_message, first_line
from saga_spark.runner.cluster_watch import (
    LOST_AFTER,
    AbsenceTimer,
    ConnectServer,
    is_connected,
    master_addresses,
    require_master,
)
from saga_spark.runner.java import class_archive_options, require_java
from saga_spark.settings import SparkSettings
from sagas.builtins.spark import STAGING_SQL_CONF
from sagas.errors import Unavailable, Unequipped
from sagas.settings.masking import mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OUT_OF_MEMORY_EXIT_CODE = 3
"""The exit code of a JVM with ``-XX:+ExitOnOutOfMemoryError``."""


class SparkSessions(Protocol):
    """The interface to classic Spark or Spark Connect."""

    spark_ui: str | None

    def open(self, tag: str) -> SparkSession:
        """A new session whose jobs, if started from this thread, carry the tag."""
        ...

    def release(self, session: SparkSession, tag: str) -> None: ...

    def cancel(self, session: SparkSession, tag: str) -> None: ...

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        """Progress of jobs with this tag: ``stages``, ``stage`` (completed), ``tasks``, ``tasks_done``, ``rows``.

        On a cluster also ``executors``, of all jobs.
        """
        ...

    def exit_reason(self, timeout: float) -> RunnerLost | None:
        """The error to report if Spark's process has exited, or exits within ``timeout`` seconds."""
        ...

    def cluster_loss(self) -> RunnerLost | None:
        """The error to report if Spark waits for a cluster that will not continue. Called once per heartbeat."""
        ...

    def ping(self) -> None:
        """Blocks while Spark is suspended; raises if it is gone."""
        ...


def create_sessions(settings: SparkSettings) -> SparkSessions:
    return ConnectSessions(settings) if settings.remote else ClassicSessions(settings)


class ClassicSessions:
    """One SparkContext in a child JVM, started with the first session."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._root_session: Any = None
        self._finished_jobs: dict[str, dict[int, tuple[int, int, int, int, int]]] = {}
        self._master_ports = {port for _, port in master_addresses(settings.master)}
        self._absence = AbsenceTimer()
        self.spark_ui: str | None = None

    def open(self, tag: str) -> SparkSession:
        with self._lock:
            self._ensure_started()
        session: Any = self._root_session.newSession()
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        session.sparkContext.addJobTag(tag)
        for name, value in STAGING_SQL_CONF.items():
            session.conf.set(name, value)
        return session

    def release(self, session: SparkSession, tag: str) -> None:
        session.sparkContext.removeJobTag(tag)
        self._finished_jobs.pop(tag, None)

    def cancel(self, session: SparkSession, tag: str) -> None:
        session.sparkContext.cancelJobsWithTag(tag)

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        java: Any = session.sparkContext._jsc
        context = java.sc()
        tracker, store = context.statusTracker(), context.statusStore()
        finished = self._finished_jobs.setdefault(tag, {})
        totals = [0, 0, 0, 0, 0]
        for job in tracker.getJobIdsForTag(tag):
            counts = finished.get(job) or self._job_counts(tracker, store, job, finished)
            totals = [total + other for total, other in zip(totals, counts, strict=True)]
        names = ("stages", "stage", "tasks", "tasks_done", "rows")
        executors = {} if self._settings.master.startswith("local") else {"executors": count_executors(context)}
        return {**dict(zip(names, totals, strict=True)), **executors, "spark_ui": self.spark_ui}

    def exit_reason(self, timeout: float) -> RunnerLost | None:
        gateway = self._gateway()
        if gateway is None:
            return None
        try:
            code = gateway.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        if code == OUT_OF_MEMORY_EXIT_CODE:
            return RunnerLost(
                f"the JVM of Spark ran out of memory; raise `memory` under [spark], now {self._settings.memory}, "
                "or use more partitions",
                memory=True,
            )
        log_crash_report(gateway.proc.pid)
        return RunnerLost(f"the JVM of Spark ended with exit code {code}")

    def cluster_loss(self) -> RunnerLost | None:
        gateway = self._gateway()
        if gateway is None or not self._master_ports:
            return None
        executors = count_executors(self._root_session.sparkContext._jsc.sc())
        if not self._absence.is_lost(present=executors > 0 or is_connected(gateway.proc.pid, self._master_ports)):
            return None
        return RunnerLost(
            f"the Spark cluster {self._settings.master} is gone: no connection to its master and no executor for "
            f"{LOST_AFTER:.0f} s; start it again"
        )

    def ping(self) -> None:
        gateway = self._gateway()
        if gateway is not None:
            gateway.jvm.java.lang.System.nanoTime()

    def close(self, timeout: float) -> None:
        """Stop Spark and its JVM. Raises subprocess.TimeoutExpired if it has not exited after ``timeout`` seconds."""
        gateway = self._gateway()
        self._root_session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout)

    def _gateway(self) -> Any:
        if self._root_session is None:
            return None
        from pyspark import SparkContext

        return SparkContext._gateway

    def _ensure_started(self) -> None:
        """Start in a thread that is never cancelled: a cancel can interrupt a run's thread at any point, which would
        leave a context in the JVM that this process does not know of."""
        if self._root_session is None:
            with ThreadPoolExecutor(1) as executor:
                executor.submit(self._start).result()

    def _start(self) -> None:
        require_java()
        require_master(self._settings.master)
        from pyspark.sql import SparkSession

        conf = {"spark.master": self._settings.master, **classic_spark_conf(self._settings)}
        if self._settings.master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark's UI would listen on all addresses
        # PySpark would put the builder's settings on the JVM's command line.
        properties = write_properties_file(conf)
        arguments = f"--load-spark-defaults --properties-file {shlex.quote(str(properties))}"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} pyspark-shell"
        try:
            first = SparkSession.builder.getOrCreate()
        except Exception as error:  # any JVM error becomes one message for the operator
            raise Unavailable(f"Spark did not start at {self._settings.master}: {error_message(error)}") from error
        finally:
            properties.unlink(missing_ok=True)  # read, and a runner that is killed leaves no secret behind
        self.spark_ui = first.sparkContext.uiWebUrl
        self._root_session = first

    @staticmethod
    def _job_counts(tracker: Any, store: Any, job: int, finished: dict[int, Any]) -> tuple[int, int, int, int, int]:
        info = tracker.getJobInfo(job)
        if info.isEmpty():
            return (0, 0, 0, 0, 0)
        stages = done = tasks = tasks_done = rows = 0
        for number in info.get().stageIds():
            stages += 1
            stage = tracker.getStageInfo(number)
            if stage.isEmpty():
                continue
            data = stage.get()
            tasks += data.numTasks()
            tasks_done += data.numCompletedTasks()
            done += data.numCompletedTasks() >= data.numTasks()
            rows += store.lastStageAttempt(number).outputRecords()
        counts = (stages, done, tasks, tasks_done, rows)
        if str(info.get().status()) != "RUNNING":
            finished[job] = counts
        return counts


def count_executors(context: Any) -> int:
    """The executors of a SparkContext in the JVM, without the driver."""
    return context.getExecutorMemoryStatus().size() - 1


class ConnectSessions:
    """Sessions on a Spark Connect server, one per run."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._progress: dict[str, dict[str, Any]] = {}
        self._server = ConnectServer(settings.remote or "")
        self._absence = AbsenceTimer()
        self._open_sessions: set[str] = set()
        self.spark_ui: str | None = None

    def open(self, tag: str) -> SparkSession:
        from pyspark.errors import PySparkException, PySparkImportError
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote(self._settings.remote or "")
        for name, value in {**STAGING_SQL_CONF, **self._settings.conf}.items():
            builder = builder.config(name, value)
        try:
            self._server.require()  # PySpark would try for ten minutes
            self._open_sessions.add(tag)
            session = builder.create()
            session.addTag(tag)
            session.registerProgressHandler(self._progress_handler(tag))
        except PySparkImportError as error:
            raise Unequipped(
                f"Spark Connect needs packages that are not installed: {first_line(error)}",
                help="pip install 'saga-orchestrator[spark-connect]'",
            ) from None
        except PySparkException as error:
            self._open_sessions.discard(tag)
            raise Unavailable(f"Spark Connect at {self._server.address}: {error_message(error)}") from error
        return session

    def release(self, session: SparkSession, tag: str) -> None:
        self._progress.pop(tag, None)
        self._open_sessions.discard(tag)
        session.stop()

    def cancel(self, session: SparkSession, tag: str) -> None:
        session.interruptTag(tag)

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        return self._progress.get(tag, {})

    def exit_reason(self, timeout: float) -> RunnerLost | None:
        return None

    def cluster_loss(self) -> RunnerLost | None:
        if not self._absence.is_lost(present=not self._open_sessions or self._server.answers()):
            return None
        return RunnerLost(
            f"the Spark Connect server {self._server.address} has not answered for {LOST_AFTER:.0f} s; start it again"
        )

    def ping(self) -> None:
        pass

    def _progress_handler(self, tag: str) -> Any:
        def note(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            self._progress[tag] = {
                "stages": len(stages),
                "stage": sum(1 for stage in stages if stage.done),
                "tasks": sum(stage.num_tasks for stage in stages),
                "tasks_done": sum(stage.num_completed_tasks for stage in stages),
            }

        return note


def classic_spark_conf(settings: SparkSettings) -> Mapping[str, str]:
    """The settings of the context. The project's settings take precedence, except over those staged files depend on."""
    scratch = os.environ.get("SAGA_SPARK_SCRATCH", "")
    options = "-XX:+ExitOnOutOfMemoryError"
    own = {
        "spark.app.name": "saga",
        "spark.driver.memory": settings.memory,
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.port": "0",
        # Otherwise PySpark sends each expression to the JVM with its call site: five calls instead of one.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if scratch:
        own["spark.sql.warehouse.dir"] = (Path(scratch) / "warehouse").as_uri()
        options += f' "-Djava.io.tmpdir={scratch}" {crash_options(scratch)}'
    if settings.master.startswith("local"):
        own |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Every user of the machine reaches these ports: the driver deserializes Java objects that it receives, and
            # the UI asks for no password.
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.ui.enabled": "false",
        }
    conf = {**own, **settings.conf}
    user_options = conf.get("spark.driver.extraJavaOptions", "")
    conf["spark.driver.extraJavaOptions"] = f"{options} {class_archive_options()} {user_options}".strip()
    return {**conf, **STAGING_SQL_CONF}


# What a JVM that crashes or runs out of memory writes: its stack, messages and settings have secrets. By default it
# writes to the working folder, where other users may read.
_CRASH_REPORT_BYTES = 1 << 20


def crash_options(scratch: str) -> str:
    """JVM options that keep these files in the runner's scratch folder, which is private and deleted with it."""
    names = ("ErrorFile=%s/hs_err_%%p.log", "ReplayDataFile=%s/replay_%%p.log", "HeapDumpPath=%s")
    return " ".join(f'"-XX:{name % scratch}"' for name in names)


def log_crash_report(pid: int) -> None:
    """Move the report of a crashed JVM, if there is one, to the runner's log, without secrets."""
    report = Path(os.environ.get("SAGA_SPARK_SCRATCH", ""), f"hs_err_{pid}.log")
    try:
        with report.open("rb") as file:
            text = file.read(_CRASH_REPORT_BYTES).decode(errors="replace")
        report.unlink()
    except FileNotFoundError:  # it did not crash, or another thread has moved it
        return
    print(mask(text), file=sys.stderr, flush=True)


# Spark's settings as a file: command lines, and secrets in them, are readable by every user of the machine.
def write_properties_file(conf: Mapping[str, str]) -> Path:
    """Write a properties file for spark-submit into the runner's scratch folder, readable by its owner only."""
    descriptor, name = tempfile.mkstemp(
        prefix="spark-", suffix=".conf", dir=os.environ.get("SAGA_SPARK_SCRATCH") or None
    )
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{_escape_property(key, key=True)}={_escape_property(value)}\n" for key, value in conf.items())
    return Path(name)


def _escape_property(text: str, *, key: bool = False) -> str:
    """Escape for the format that java.util.Properties reads."""
    for plain, written in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, written)
    if key:
        for sign in "=: #!":
            text = text.replace(sign, f"\\{sign}")
    return f"\\{text}" if text.startswith((" ", "#", "!")) and not key else text
