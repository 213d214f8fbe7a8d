"""``[spark]`` of saga.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from sagas.builtins.spark import STAGING_SQL_CONF
from sagas.settings.addresses import require_spark_master, require_spark_remote
from sagas.settings.forms import Count, OptionalText, Seconds, Text, Texts, properties, text
from sagas.settings.secrets import Secret
from sagas.settings.table import Table, setting
from sagas.settings.wrong_setting import WrongSetting

DEFAULT_WORK = ".saga/spark"


def _check_property(name: str, value: str | Secret) -> None:
    if not name.startswith("spark."):
        raise WrongSetting(name, "is not a property of Spark, whose names start with spark. (mind the dot)")
    if value != STAGING_SQL_CONF.get(name, value):
        raise WrongSetting(name, f"must stay {STAGING_SQL_CONF[name]}: staged files rely on it")


def _check_stage(setting: str, stage: str) -> None:
    try:
        urlsplit(stage)
    except ValueError:
        raise WrongSetting(setting, "must be a folder or a URI such as s3://bucket/stage") from None


class SparkTable(Table):
    """How jobs run and where they stage, as it is written: paths are relative to the project folder."""

    heading = "spark"
    summary = "For projects with [Spark steps](../how-to/spark-jobs.md)."

    master: Annotated[str, text(require_spark_master)] = setting(
        "local[2]", "`local[N]`, `spark://…`, `yarn` or `k8s://…`"
    )
    remote: Annotated[str | None, text(require_spark_remote)] = setting(
        None, "the address of a Spark Connect server; takes precedence over `master`", "sc://spark:15002", repr=False
    )
    stage: Annotated[str, text(_check_stage)] = setting(
        f"{DEFAULT_WORK}/stage",
        "a URI or a folder: where outputs and frozen inputs are kept until they are published. All workers, "
        "runners and executors must reach it",
        "s3://shop/stage",
    )
    ledger: OptionalText = setting(
        None,
        "the SQL connection with the guard rows of Spark steps and the table `saga_output`, which `saga setup` "
        "creates; default: `connection` of `[ledger]`",
        "shop",
    )
    memory: Text = setting(
        "1g",
        "the heap of the driver. The runner may use 2 GiB more in total (JVM, Python and Python workers); above "
        "that it is stopped",
    )
    conf: Annotated[Mapping[str, str], properties(_check_property)] = setting(
        {},
        "Spark properties of the session and the cluster; a step's own `conf` is for that job only. The time zone "
        "(UTC) and the unit of timestamps in Parquet are fixed, because staged files rely on them. "
        '`"spark.python.sql.dataFrameDebugging.enabled" = "true"` makes errors name the line of the job, but '
        "building expressions is several times slower",
        {"spark.sql.shuffle.partitions": "8"},
        repr=False,
    )
    retention: Seconds = setting(
        7 * 86_400.0,
        "how long a rejected output and its report are kept. Other staged files are deleted when their saga closes",
        "7d",
    )
    recycle_after: Count = setting(
        200, "the number of runs after which a new runner is started; a step has up to three (inputs, job, audit)"
    )
    python_path: Texts = setting((".",), "folders from which jobs are imported")
    work: Text = setting(
        DEFAULT_WORK,
        "where runners keep logs (`runner-*.log`, the last ten) and scratch files. Each worker needs its own",
    )
