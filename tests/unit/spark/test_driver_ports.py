"""The ports of the driver of a local Spark, which every user of the machine reaches."""

from __future__ import annotations

from pathlib import Path

from saga_spark.runner.spark_session import classic_spark_conf
from saga_spark.settings import SparkSettings


def test_the_driver_of_a_local_spark_asks_for_a_secret_of_its_own(tmp_path: Path) -> None:
    first, second = (classic_spark_conf(SparkSettings(root=tmp_path, master="local[2]")) for _ in range(2))
    assert first["spark.authenticate"] == "true"
    assert len(first["spark.authenticate.secret"]) == 64
    assert first["spark.authenticate.secret"] != second["spark.authenticate.secret"]
    assert first["spark.ui.enabled"] == "false"
    assert first["spark.driver.host"] == first["spark.driver.bindAddress"] == "127.0.0.1"


def test_the_settings_of_the_project_take_precedence(tmp_path: Path) -> None:
    given = {"spark.ui.enabled": "true", "spark.authenticate.secret": "ours"}
    conf = classic_spark_conf(SparkSettings(root=tmp_path, master="local[2]", conf=given))
    assert {name: conf[name] for name in given} == given


def test_a_cluster_has_the_secret_of_its_own_settings(tmp_path: Path) -> None:
    conf = classic_spark_conf(SparkSettings(root=tmp_path, master="spark://127.0.0.1:7077"))
    assert [name for name in conf if name.startswith("spark.authenticate")] == []
