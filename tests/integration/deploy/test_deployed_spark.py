"""The cluster of docker-compose.yml with its spark-defaults.conf: driver and executors need the secret."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from saga_spark.runner.java import require_java
from sagas.errors import SagaError
from tests.helpers.database_servers import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.processes import Process

COMPOSE = YAML(typ="safe").load((Path(__file__).parents[3] / "docker-compose.yml").read_text())
DRIVER = """
import sys
from pathlib import Path
from saga_spark.runner.spark_session import ClassicSessions
from saga_spark.settings import SparkSettings

conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.ui.enabled": "false"}
session = ClassicSessions(SparkSettings(root=Path.cwd(), master=sys.argv[1], conf=conf)).open("one")
print("the sum is", session.range(10).selectExpr("sum(id)").collect()[0][0], flush=True)
"""


@pytest.mark.slow
def test_the_cluster_needs_the_secret(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark")
    try:
        require_java("Spark")
    except SagaError as error:
        pytest.skip(error.message)
    content = COMPOSE["configs"]["spark-defaults"]["content"]
    for name, text in {"with": re.sub(r"\$\{[^}]*\}", "s3cret-of-the-cluster", content), "without": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "spark-defaults.conf").write_text(text)
    base = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": sys.executable}
    shared = {**base, "SPARK_CONF_DIR": str(tmp_path / "with"), "SPARK_WORKER_CORES": "1", "SPARK_WORKER_MEMORY": "1g"}
    shared["SPARK_WORKER_DIR"] = str(tmp_path / "work")
    port, ui = free_port(), free_port()
    address, program = f"spark://{HOST}:{port}", str(Path(base["SPARK_HOME"], "bin", "spark-class"))

    def page_has(text: bytes) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{ui}/json/", timeout=2) as answer:
                return text in answer.read()
        except OSError:
            return False

    names = {role: COMPOSE["services"][role]["entrypoint"][1] for role in ("spark", "spark-worker")}
    listen = ["--host", HOST, "--port", str(port), "--webui-port", str(ui)]
    master = Process("master", [program, names["spark"], *listen], tmp_path, lambda: page_has(b"ALIVE"), shared)
    join = ["--host", HOST, "--webui-port", str(free_port()), address]
    worker = Process(
        "worker", [program, names["spark-worker"], *join], tmp_path, lambda: page_has(b'"aliveworkers" : 1'), shared
    )

    def driver(name: str, line: str) -> Process:
        argv, environment = [sys.executable, "-c", DRIVER, address], {**base, "SPARK_CONF_DIR": str(tmp_path / name)}
        log = tmp_path / f"{name}.log"
        return Process(name, argv, tmp_path, lambda: line in log.read_text(), environment)

    let_in, refused = driver("with", "the sum is 45"), driver("without", "Failed to connect to master")
    with master, worker:
        try:
            let_in.launch()
            refused.start(120)
            assert "the sum is" not in (tmp_path / "without.log").read_text()
            let_in.wait(120)
        finally:
            let_in.kill()
            refused.kill()
    logs = "".join(file.read_text() for file in [*tmp_path.glob("*.log"), *tmp_path.glob("work/*/*/std*")])
    assert "s3cret-of-the-cluster" not in logs
