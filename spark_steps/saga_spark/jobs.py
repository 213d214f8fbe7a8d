"""A job as code: `module:function` or SQL, run against a session, giving one DataFrame for each output."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_spark.errors import JobFailed
from saga_spark.frames import Inputs
from saga_spark.job import Job
from saga_spark.problems import explain
from saga_spark.runner.messages import Stale
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError
from sagas.settings.model import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_importing = threading.Lock()
_sources: dict[str, int] = {}
"""Files of imported jobs and when they were changed last (nanoseconds)."""


def name_of(job: Job) -> str:
    """How messages call the job."""
    if isinstance(job.code, str):
        return f"the job {job.code}"
    return "the SQL of the job" if "sql" in job.code else f"the program {job.code['main']}"


def run_job(spark: SparkSession, job: Job, inputs: Inputs, settings: SparkSettings) -> dict[str, DataFrame]:
    """The outputs of a Python or SQL job; nothing has been computed yet, apart from what the job itself does.

    Raises UsageError (there is no such function, or it cannot be called so), JobFailed (it raised, or its answer is
    wrong), Infrastructure.
    """
    for name, value in job.conf.items():
        _configure(spark, name, value)
    if isinstance(job.code, str):
        function = load(job.code, settings)
        must_take(function, job.code, spark, inputs, job.params)
        try:
            answer = function(spark, inputs, **job.params)
        except (JobFailed, UsageError):
            raise
        except Exception as error:
            raise explain(error, name_of(job), settings.python_path) from error
    else:
        answer = _sql(spark, job, inputs)
    return outputs_of(answer, tuple(job.outputs), name_of(job))


def outputs_of(answer: Any, names: Sequence[str], what: str) -> dict[str, DataFrame]:
    """A job with one output may answer with the DataFrame alone. Raises JobFailed."""
    if not isinstance(answer, Mapping):
        if len(names) > 1:
            raise JobFailed(
                f"{what} returned {_kind(answer)}, where a DataFrame is needed for each of {', '.join(names)}"
            )
        answer = {names[0]: answer}
    missing = [name for name in names if name not in answer]
    if missing:
        raise JobFailed(f"{what} returned no output {missing[0]}{did_you_mean(missing[0], tuple(answer))}")
    more = [str(name) for name in answer if name not in names]
    if more:
        raise JobFailed(f"{what} returned the output {more[0]}, which the step does not name")
    for name in names:
        if not _is_frame(answer[name]):
            raise JobFailed(f"{what} returned {_kind(answer[name])} for {name}, where a Spark DataFrame is needed")
    return {name: answer[name] for name in names}


def load(path: str, settings: SparkSettings) -> Callable[..., Any]:
    """The function ``module:function`` from the settings' ``python_path``.

    Raises UsageError (no such module, no such function), JobFailed (the module cannot be imported).
    """
    module_name, _, function_name = path.partition(":")
    with _importing:
        for folder in reversed(settings.python_path):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"there is no module {error.name} for the job {path}",
                    help="[spark] python_path in saga.toml says where jobs are imported from",
                ) from None
            raise explain(error, f"the import of {module_name}", settings.python_path) from error
        except Exception as error:
            raise explain(error, f"the import of {module_name}", settings.python_path) from error
        _remember(settings.python_path)
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = tuple(name for name, _ in inspect.getmembers(module, inspect.isfunction))
        raise UsageError(f"{module_name} has no function {function_name}{did_you_mean(function_name, functions)}")
    return function


def refuse_stale() -> None:
    """Raises Stale: a source has changed since it was imported, so this process would run the old code."""
    with _importing:
        if any(_changed(source, when) for source, when in _sources.items()):
            raise Stale


def must_take(function: Callable[..., Any], path: str, spark: Any, inputs: Any, params: Mapping[str, Any]) -> None:
    """Raises UsageError: the function does not take what the step gives."""
    try:
        inspect.signature(function).bind(spark, inputs, **params)
    except TypeError as error:
        raise UsageError(
            f"the job {path} cannot be called with the step's params: {error}",
            help=f"def {path.partition(':')[2]}(spark, inputs, {', '.join(params) or '**params'})",
        ) from None


def _sql(spark: SparkSession, job: Job, inputs: Inputs) -> DataFrame:
    assert not isinstance(job.code, str)
    try:
        for name, frame in inputs.items():
            frame.createOrReplaceTempView(name)
        return spark.sql(job.code["sql"], args=dict(job.params))
    except Exception as error:
        raise explain(error, name_of(job)) from error


def _configure(spark: SparkSession, name: str, value: Any) -> None:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        spark.conf.set(name, text)
    except Exception as error:
        if "CANNOT_MODIFY" in str(error):
            raise UsageError(
                f"conf: {name} belongs to the whole Spark session and cannot be set by a step",
                help="put it under [spark.conf] in saga.toml",
            ) from None
        raise explain(error, f"conf {name}") from error


def _remember(folders: Iterable[str]) -> None:
    """The sources of all modules below the folders, apart from installed ones."""
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if not source or source in _sources or "site-packages" in source:
            continue
        if any(Path(source).is_relative_to(folder) for folder in folders):
            _sources[source] = os.stat(source).st_mtime_ns


def _changed(source: str, when: int) -> bool:
    try:
        return os.stat(source).st_mtime_ns != when
    except FileNotFoundError:
        return True


def _is_frame(value: Any) -> bool:
    """Classic and Connect have a class of their own below this one."""
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
