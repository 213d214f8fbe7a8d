"""Runs a job: `module:function` or SQL in a session, with one DataFrame per output, or a program of spark-submit."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from saga_spark.job.job_spec import Job
from saga_spark.job.sql_parameters import run_sql
from saga_spark.job_errors import JobFailed, last_error_line, to_job_error
from saga_spark.runner.java import require_java
from saga_spark.runner.runner_process import kill_tree
from saga_spark.runner.runner_protocol import SourcesChanged
from saga_spark.runner.spark_session import classic_spark_conf, write_properties_file
from saga_spark.runner.task_context import TaskContext
from saga_spark.session_conf import apply_conf
from saga_spark.settings import SparkSettings
from saga_spark.storage import spark_path, spark_read_path
from sagas.builtins.spark import SESSION_ZONE
from sagas.errors import UsageError, did_you_mean
from sagas.settings.python_processes import with_script_folder
from sagas.settings.trust import require_own, require_own_modules
from sagas.text.author_errors import make_ordinary
from sagas.text.exact_json import decode_json, encode_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_import_lock = threading.Lock()
_modification_times: dict[str, int] = {}
"""Source files of imported jobs, with their modification times in nanoseconds."""


def job_label(job: Job) -> str:
    """The name of the job in messages."""
    if isinstance(job.code, str):
        return f"the job {job.code}"
    return "the SQL of the job" if "sql" in job.code else f"the program {job.code['main']}"


def run_job(
    spark: SparkSession, job: Job, inputs: Mapping[str, DataFrame], settings: SparkSettings
) -> dict[str, DataFrame]:
    """The outputs of a Python or SQL job as DataFrames; nothing is computed yet except by the job itself.

    Raises UsageError (the function does not exist, does not accept the arguments, or returns something else), JobFailed
    (it raised), InfrastructureError.
    """
    if settings.remote and str(job.conf.get(SESSION_ZONE, "UTC")) != "UTC":
        raise UsageError(
            f"{SESSION_ZONE} in conf must be UTC over Spark Connect, because checks use that zone; remove it"
        )
    apply_conf(spark, job.conf)
    if isinstance(job.code, str):
        function = load_function(job.code, settings)
        check_signature(function, job.code, spark, inputs, job.params)
        try:
            returned = function(spark, inputs, **job.params)
        except Exception as error:
            make_ordinary(error)
            if isinstance(error, JobFailed | UsageError):
                raise
            raise to_job_error(error, job_label(job), settings.python_path) from error
    else:
        returned = _run_sql(spark, job, inputs)
    frames = check_outputs(returned, tuple(job.outputs), job_label(job))
    if settings.remote is None:
        for frame in frames.values():
            check_text_sources(frame, job_label(job))
    return frames


def check_text_sources(frame: DataFrame, label: str) -> None:
    """Spark's default reads what it cannot parse in CSV and JSON as null, and it rounds decimals of CSV, of which it
    removes commas. Raises UsageError unless the job has chosen a `mode` and reads such columns as text.

    Only for a session of this machine: a Connect server does not show its plans.
    """
    plan: Any = frame
    leaves = plan._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            continue
        kind, options = relation.fileFormat().toString(), relation.options()
        path = relation.location().rootPaths().mkString(", ")
        if kind in ("CSV", "JSON", "XML") and not options.get("mode").isDefined():
            raise UsageError(
                f"{label} reads {kind} from {path} without `mode`, so Spark would read what it cannot parse as null; "
                'add .option("mode", "FAILFAST")'
            )
        for field in decode_json(relation.dataSchema().json())["fields"] if kind == "CSV" else ():
            size = _DECIMAL.fullmatch(str(field["type"]))
            if size is not None:
                whole, scale = int(size[1]) - int(size[2]), int(size[2])
                form = f"S{'9' * whole or '0'}{'.' * bool(scale)}{'9' * scale}"
                raise UsageError(
                    f"{label} reads the column {field['name']} of CSV from {path} as {field['type']}, for which Spark "
                    f"rounds numbers and takes 2,50 for 250; read it as string, and convert it with "
                    f"to_number({field['name']}, '{form}')"
                )


def check_outputs(returned: Any, names: Sequence[str], label: str) -> dict[str, DataFrame]:
    """Check a job's return value; with one output it may be the DataFrame itself. Raises UsageError."""
    if not isinstance(returned, Mapping):
        if len(names) > 1:
            raise UsageError(
                f"{label} returned {_type_label(returned)}; return a mapping with a DataFrame for each of "
                f"{', '.join(names)}"
            )
        returned = {names[0]: returned}
    missing = [name for name in names if name not in returned]
    if missing:
        raise UsageError(f"{label} returned no output {missing[0]}{did_you_mean(missing[0], tuple(returned))}")
    unexpected = [str(name) for name in returned if name not in names]
    if unexpected:
        raise UsageError(f"{label} returned the output {unexpected[0]}, which the step does not declare")
    for name in names:
        if not _is_dataframe(returned[name]):
            raise UsageError(
                f"{label} returned {_type_label(returned[name])} for the output {name}; return a Spark DataFrame"
            )
    return {name: returned[name] for name in names}


def load_function(path: str, settings: SparkSettings) -> Callable[..., Any]:
    """Import the function ``module:function`` from the settings' ``python_path``.

    Raises UsageError (no such module or function, or it belongs to another user), JobFailed (the module cannot be
    imported).
    """
    module_name, _, function_name = path.partition(":")
    for folder in settings.python_path:
        require_own_modules([module_name], Path(folder))
    with _import_lock:
        for folder in reversed(settings.python_path):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"the module {error.name} of the job {path} does not exist",
                    help="[spark] python_path in saga.toml lists the folders from which jobs are imported",
                ) from None
            raise to_job_error(error, f"the import of {module_name}", settings.python_path) from error
        except Exception as error:
            raise to_job_error(error, f"the import of {module_name}", settings.python_path) from error
        _record_sources(settings.python_path)
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = tuple(name for name, _ in inspect.getmembers(module, inspect.isfunction))
        raise UsageError(f"{module_name} has no function {function_name}{did_you_mean(function_name, functions)}")
    return function


def check_sources_unchanged() -> None:
    """Raises SourcesChanged if a source has changed since its import, because this process would run the old code."""
    with _import_lock:
        if any(_is_changed(source, when) for source, when in _modification_times.items()):
            raise SourcesChanged


def check_signature(
    function: Callable[..., Any], path: str, spark: Any, inputs: Any, params: Mapping[str, Any]
) -> None:
    """Raises UsageError if the function does not accept the arguments of the step."""
    try:
        inspect.signature(function).bind(spark, inputs, **params)
    except TypeError as error:
        raise UsageError(
            f"the job {path} does not accept the `params` of the step: {error}",
            help=f"def {path.partition(':')[2]}(spark, inputs, {', '.join(params) or '**params'})",
        ) from None


def _run_sql(spark: SparkSession, job: Job, inputs: Mapping[str, DataFrame]) -> DataFrame:
    assert not isinstance(job.code, str)
    try:
        for name, frame in inputs.items():
            frame.createOrReplaceTempView(name)
        return run_sql(spark, job.code["sql"], job.params)
    except UsageError:
        raise
    except Exception as error:
        raise to_job_error(error, job_label(job)) from error


def _record_sources(folders: Iterable[str]) -> None:
    """Record the sources of all modules below the folders, except installed packages."""
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if not source or source in _modification_times or "site-packages" in source:
            continue
        if any(Path(source).is_relative_to(folder) for folder in folders):
            _modification_times[source] = os.stat(source).st_mtime_ns


def _is_changed(source: str, when: int) -> bool:
    try:
        return os.stat(source).st_mtime_ns != when
    except FileNotFoundError:
        return True


def _is_dataframe(value: Any) -> bool:
    """Return whether the value is a DataFrame; those of classic and of Connect sessions are different subclasses."""
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def _type_label(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")


# Programs for `spark-submit`, which get their inputs and stage folders through the environment.
OUTPUT_TAIL_LINES = 400
"""How much of the program's output is searched for the error; the runner's log has all of it."""


def run_program(context: TaskContext, job: Job, inputs: Mapping[str, Any], folders: Mapping[str, str]) -> None:
    """Run the program to its end. ``folders`` are where it writes Parquet, by output.

    Its environment has ``SAGA_STAGE`` (the folder; with several outputs a JSON object of them), ``SAGA_INPUTS`` (JSON:
    name to ``format``, ``files``, and the ``schema`` if the files have different columns) and ``SAGA_PARAMS`` (JSON).
    Raises UsageError, JobFailed.
    """
    assert not isinstance(job.code, str)
    if context.settings.remote:
        raise UsageError("a job with `main` cannot be submitted over Spark Connect; set `master` under [spark]")
    main = str(job.code["main"])
    if "://" not in main:
        program = context.settings.root / main
        if not program.is_file():
            raise UsageError(f"the program {main} does not exist in the project; correct `main`")
        require_own(program)
        main = str(program)
    require_java()
    argv = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", context.settings.master]
    conf = {**classic_spark_conf(context.settings), **{name: str(value) for name, value in job.conf.items()}}
    argv += ["--load-spark-defaults", "--properties-file", str(write_properties_file(conf))]
    if "class" in job.code:
        argv += ["--class", str(job.code["class"])]
    argv += [main, *(str(argument) for argument in job.code.get("args", ()))]
    output_paths = {name: spark_path(uri) for name, uri in folders.items()}
    input_files = {
        name: {
            "format": frozen["format"],
            "files": [spark_read_path(uri) for uri in frozen["files"]],
            "schema": frozen.get("schema"),
        }
        for name, frozen in inputs.items()
    }
    environment = {
        **os.environ,
        **({} if "://" in main else with_script_folder(Path(main))),
        "SAGA_STAGE": next(iter(output_paths.values()))
        if len(output_paths) == 1
        else encode_json(output_paths).decode(),
        "SAGA_INPUTS": encode_json(input_files).decode(),
        "SAGA_PARAMS": encode_json(dict(job.params)).decode(),
    }
    child = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    context.on_cancel(lambda: kill_tree(child.pid))
    tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
    assert child.stdout is not None
    for line in child.stdout:
        sys.stderr.write(line)
        tail.append(line)
    code = child.wait()
    context.raise_if_cancelled()
    if code != 0:
        output = "".join(tail)
        raise JobFailed(
            f"{job_label(job)} ended with exit code {code}: {last_error_line(output)}", {"output": output[-4000:]}
        )
