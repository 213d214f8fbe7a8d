"""Spark's own servers from the jars of PySpark, each a process that listens on 127.0.0.1."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyspark

from saga_workers.devstack.ports import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.processes import Process

HOME = Path(pyspark.__file__).parent
EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkServer(Process):
    """One JVM that ``spark-class`` or ``spark-submit`` starts; it is ready when ``port`` accepts connections."""

    def __init__(self, name: str, folder: Path, port: int, *words: str, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        program, *options = words
        own = {**os.environ, "SPARK_LOCAL_IP": HOST, "SPARK_HOME": str(HOME), "SPARK_LOCAL_DIRS": str(folder)}
        super().__init__(
            name,
            [str(HOME / "bin" / program), *options],
            folder,
            lambda: accepts_connections(port),
            {**own, "SPARK_DAEMON_MEMORY": "256m", **(env or {})},
        )


class StandaloneCluster:
    """A master and two workers of one core each. `kill` and `start` keep the address, and nothing else."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"spark://{HOST}:{port}"
        options = ("--host", HOST, "--port", str(port), "--webui-port", "0")
        self.master = SparkServer(
            "master", folder / "master", port, "spark-class", "org.apache.spark.deploy.master.Master", *options
        )
        self.workers = [self._worker(folder / name, name) for name in ("one", "two")]

    def _worker(self, folder: Path, name: str) -> SparkServer:
        port = free_port()
        options = ("--host", HOST, "--port", str(port), "--webui-port", "0", "--cores", "1", "--memory", "600m")
        program = "org.apache.spark.deploy.worker.Worker"
        where = ("--work-dir", str(folder / "work"))
        return SparkServer(name, folder, port, "spark-class", program, *options, *where, self.url)

    def start(self) -> None:
        self.master.start()
        for worker in self.workers:
            worker.launch()
        for worker in self.workers:
            worker.wait()

    def executors(self) -> list[psutil.Process]:
        """The executors that run now."""
        running = [psutil.Process(worker.pid) for worker in self.workers if worker.running]
        children = [child for worker in running for child in worker.children(recursive=True)]
        return [child for child in children if EXECUTOR in " ".join(_command(child))]

    def kill(self) -> None:
        """SIGKILL to all processes of the cluster."""
        executors = self.executors()
        for server in (self.master, *self.workers):
            server.kill()
        for executor in executors:  # in the group of their worker, so gone already
            executor.wait(10)


class ConnectProcess(SparkServer):
    """A Spark Connect server with two cores of this machine. `kill` and `start` keep the address, and no session."""

    def __init__(self, folder: Path, conf: Mapping[str, str]) -> None:
        port = free_port()
        self.url = f"sc://{HOST}:{port}"
        own = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        }
        words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
        words += [word for name, value in {**own, **conf}.items() for word in ("--conf", f"{name}={value}")]
        env = {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "600m"}  # its heap: spark-submit sees a daemon
        super().__init__("connect", folder, port, "spark-submit", *words, "spark-internal", env=env)


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
