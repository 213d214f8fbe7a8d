"""A run that is cancelled while Spark starts for it: the next run has a Spark all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, as in a runner: the first run is cancelled as soon as the JVM is there, and no context yet.
PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from pyspark import SparkContext
from saga_spark.runner.runner_protocol import TaskCancelled
from saga_spark.runner.spark_session import ClassicSessions
from saga_spark.runner.task_context import TaskContext
from saga_spark.settings import SparkSettings

settings = SparkSettings(root=Path(sys.argv[1]), master="local[1]", conf={"spark.ui.enabled": "false"})
sessions = ClassicSessions(settings)
first, second = (TaskContext(number, f"run-{number}", settings, sessions, print) for number in (1, 2))
outcome = []

def begin():
    first.begin()
    try:
        first.spark
        outcome.append("started")
    except TaskCancelled:
        outcome.append("cancelled")
    finally:
        first.end()

thread = threading.Thread(target=begin)
thread.start()
while SparkContext._gateway is None:
    time.sleep(0.001)
first.cancel()
thread.join()
second.begin()
print(outcome, second.spark.range(3).count(), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_cancel_during_spark_startup_leaves_no_partial_session(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.stdout.strip().endswith("['cancelled'] 3"), result.stderr[-3000:]
