"""The warm Spark session: one context (or one Spark Connect server), and a session of its own for each run."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from saga_spark.errors import RunnerLost, Unequipped
from saga_spark.runner import class_archive
from saga_spark.runner.java import check_java
from saga_spark.runner.properties import properties_file
from saga_spark.settings import SparkSettings
from sagas.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT_OF_MEMORY = 3
"""The exit code of a JVM with ``-XX:+ExitOnOutOfMemoryError``."""

SQL_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What staged files rely on: a timestamp means the same everywhere, and every reader knows its unit."""


class Sessions(Protocol):
    """Classic Spark or Spark Connect."""

    ui: str | None

    def open(self, tag: str) -> SparkSession:
        """A fresh session whose jobs, started from this thread, carry the tag."""
        ...

    def release(self, session: SparkSession, tag: str) -> None: ...

    def cancel(self, session: SparkSession, tag: str) -> None: ...

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        """How far the jobs with this tag are: ``stages``, ``stage`` (done), ``tasks``, ``tasks_done``, ``rows``."""
        ...

    def ended(self, patience: float) -> RunnerLost | None:
        """What to say if Spark's process has ended, or ends within ``patience`` seconds."""
        ...

    def ping(self) -> None:
        """Blocks while Spark stands still; raises when it is not there."""
        ...


def sessions_for(settings: SparkSettings) -> Sessions:
    return ConnectSessions(settings) if settings.remote else ClassicSessions(settings)


class ClassicSessions:
    """One SparkContext in a JVM below this process, started with the first session."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._first: Any = None
        self._finished: dict[str, dict[int, tuple[int, int, int, int, int]]] = {}
        self.ui: str | None = None

    def open(self, tag: str) -> SparkSession:
        with self._lock:
            self._ensure_started()
        session: Any = self._first.newSession()
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        session.sparkContext.addJobTag(tag)
        for name, value in SQL_CONF.items():
            session.conf.set(name, value)
        return session

    def release(self, session: SparkSession, tag: str) -> None:
        session.sparkContext.removeJobTag(tag)
        self._finished.pop(tag, None)

    def cancel(self, session: SparkSession, tag: str) -> None:
        session.sparkContext.cancelJobsWithTag(tag)

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        java: Any = session.sparkContext._jsc
        context = java.sc()
        tracker, store = context.statusTracker(), context.statusStore()
        known = self._finished.setdefault(tag, {})
        totals = [0, 0, 0, 0, 0]
        for job in tracker.getJobIdsForTag(tag):
            counts = known.get(job) or self._job(tracker, store, job, known)
            totals = [one + other for one, other in zip(totals, counts, strict=True)]
        names = ("stages", "stage", "tasks", "tasks_done", "rows")
        return {**dict(zip(names, totals, strict=True)), "spark_ui": self.ui}

    def ended(self, patience: float) -> RunnerLost | None:
        gateway = self._gateway()
        if gateway is None:
            return None
        try:
            code = gateway.proc.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        if code == OUT_OF_MEMORY:
            return RunnerLost(
                f"Spark's JVM ran out of memory: raise `memory` under [spark], now {self._settings.memory}, "
                "or use more partitions",
                memory=True,
            )
        return RunnerLost(f"Spark's JVM has ended with exit code {code}")

    def ping(self) -> None:
        gateway = self._gateway()
        if gateway is not None:
            gateway.jvm.java.lang.System.nanoTime()

    def close(self, patience: float) -> None:
        """End Spark and its JVM. Raises subprocess.TimeoutExpired: it has not ended after ``patience`` seconds."""
        gateway = self._gateway()
        self._first.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(patience)

    def _gateway(self) -> Any:
        if self._first is None:
            return None
        from pyspark import SparkContext

        return SparkContext._gateway

    def _ensure_started(self) -> None:
        """In a thread that nobody cancels: a cancel reaches the thread of a run at any step, and what would be left is
        a context that the JVM has, and we do not."""
        if self._first is None:
            with ThreadPoolExecutor(1) as own:
                own.submit(self._start).result()

    def _start(self) -> None:
        check_java()
        from pyspark.sql import SparkSession

        conf = {"spark.master": self._settings.master, **classic_conf(self._settings)}
        # PySpark would put what the builder is given on the JVM's command line.
        arguments = f"--load-spark-defaults --properties-file {shlex.quote(str(properties_file(conf)))}"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} pyspark-shell"
        try:
            first = SparkSession.builder.getOrCreate()
        except Exception as error:  # whatever the JVM says: it is one sentence for a person
            from saga_spark.problems import sentence

            raise Unavailable(f"Spark did not start at {self._settings.master}: {sentence(error)}") from error
        self.ui = first.sparkContext.uiWebUrl
        self._first = first

    @staticmethod
    def _job(tracker: Any, store: Any, job: int, known: dict[int, Any]) -> tuple[int, int, int, int, int]:
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
            known[job] = counts
        return counts


class ConnectSessions:
    """Sessions on a Spark Connect server, one for each run."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._progress: dict[str, dict[str, Any]] = {}
        self.ui: str | None = None

    def open(self, tag: str) -> SparkSession:
        from pyspark.errors import PySparkException, PySparkImportError
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote(self._settings.remote or "")
        for name, value in {**SQL_CONF, **self._settings.conf}.items():
            builder = builder.config(name, value)
        try:
            session = builder.create()
            session.addTag(tag)
            session.registerProgressHandler(self._handler(tag))
        except PySparkImportError as error:
            raise Unequipped(
                f"Spark Connect needs more packages: {str(error).splitlines()[0]}",
                help="pip install 'saga-orchestrator[spark-connect]'",
            ) from None
        except PySparkException as error:
            from saga_spark.problems import sentence

            raise Unavailable(f"Spark Connect at {self._settings.remote}: {sentence(error)}") from error
        return session

    def release(self, session: SparkSession, tag: str) -> None:
        self._progress.pop(tag, None)
        session.stop()

    def cancel(self, session: SparkSession, tag: str) -> None:
        session.interruptTag(tag)

    def progress(self, session: SparkSession, tag: str) -> dict[str, Any]:
        return self._progress.get(tag, {})

    def ended(self, patience: float) -> RunnerLost | None:
        return None

    def ping(self) -> None:
        pass

    def _handler(self, tag: str) -> Any:
        def note(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            self._progress[tag] = {
                "stages": len(stages),
                "stage": sum(1 for one in stages if one.done),
                "tasks": sum(one.num_tasks for one in stages),
                "tasks_done": sum(one.num_completed_tasks for one in stages),
            }

        return note


def classic_conf(settings: SparkSettings) -> Mapping[str, str]:
    """The settings of the context; what the project says wins, except what staged files rely on."""
    scratch = os.environ.get("SAGA_SPARK_SCRATCH", "")
    options = "-XX:+ExitOnOutOfMemoryError"
    own = {
        "spark.app.name": "saga",
        "spark.driver.memory": settings.memory,
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.port": "0",
        # Otherwise each expression is told to the JVM with the line it was written in: five calls in place of one.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if scratch:
        own["spark.sql.warehouse.dir"] = (Path(scratch) / "warehouse").as_uri()
        options += f" -Djava.io.tmpdir={scratch}"
    if settings.master.startswith("local"):
        own |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    wanted = {**own, **settings.conf}
    theirs = wanted.get("spark.driver.extraJavaOptions", "")
    wanted["spark.driver.extraJavaOptions"] = f"{options} {class_archive.options()} {theirs}".strip()
    return {**wanted, **SQL_CONF}
