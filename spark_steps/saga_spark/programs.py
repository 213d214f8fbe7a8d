"""A job that is a program of its own, given to `spark-submit`: it finds its inputs and its stage in the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from saga_spark.errors import JobFailed
from saga_spark.job import Job
from saga_spark.jobs import name_of
from saga_spark.problems import last_error_line
from saga_spark.runner.java import check_java
from saga_spark.runner.process import kill_tree
from saga_spark.runner.properties import properties_file
from saga_spark.runner.run import Run
from saga_spark.runner.session import classic_conf
from saga_spark.storage import spark_path
from sagas.errors import UsageError

KEPT_LINES = 400
"""Of the program's output, to find in it what went wrong; all of it is in the runner's log."""


def run_program(run: Run, job: Job, inputs: Mapping[str, Any], folders: Mapping[str, str]) -> None:
    """Wait for the program; ``folders`` are where it writes Parquet, by output.

    It sees ``SAGA_STAGE`` (the folder; with several outputs a JSON object of them), ``SAGA_INPUTS`` (JSON: name to
    ``format`` and ``files``) and ``SAGA_PARAMS`` (JSON). Raises UsageError, JobFailed.
    """
    assert not isinstance(job.code, str)
    if run.settings.remote:
        raise UsageError("a job with `main` needs a Spark master: it cannot be submitted over Spark Connect")
    check_java()
    main = str(job.code["main"])
    if "://" not in main:
        place = run.settings.root / main
        if not place.is_file():
            raise UsageError(f"there is no program {main} in the project")
        main = str(place)
    argv = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", run.settings.master]
    conf = {**classic_conf(run.settings), **{name: str(value) for name, value in job.conf.items()}}
    argv += ["--load-spark-defaults", "--properties-file", str(properties_file(conf))]
    if "class" in job.code:
        argv += ["--class", str(job.code["class"])]
    argv += [main, *(str(one) for one in job.code.get("args", ()))]
    places = {name: spark_path(uri) for name, uri in folders.items()}
    described = {
        name: {"format": one["format"], "files": [spark_path(uri) for uri in one["files"]]}
        for name, one in inputs.items()
    }
    environment = {
        **os.environ,
        "SAGA_STAGE": next(iter(places.values())) if len(places) == 1 else json.dumps(places),
        "SAGA_INPUTS": json.dumps(described),
        "SAGA_PARAMS": json.dumps(dict(job.params)),
    }
    child = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    run.on_cancel(lambda: kill_tree(child.pid))
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    assert child.stdout is not None
    for line in child.stdout:
        sys.stderr.write(line)
        tail.append(line)
    code = child.wait()
    run.check()
    if code != 0:
        output = "".join(tail)
        raise JobFailed(
            f"{name_of(job)} ended with exit code {code}: {last_error_line(output)}", {"output": output[-4000:]}
        )
