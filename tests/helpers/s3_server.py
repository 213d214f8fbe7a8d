"""A local server of the S3 API for tests: moto, in a Python environment of its own that is created once per user."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from saga_workers.devstack.locked_jars import LockedJars
from saga_workers.devstack.ports import HOST
from sagas.errors import SagaError
from tests.helpers.free_ports import free_port
from tests.helpers.processes import Process
from tests.helpers.spark_servers import accepts_connections

LOCK = Path(__file__).with_name("s3_server.lock")
BUCKET = "lake"
KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"


class S3UnavailableError(SagaError):
    """The server cannot be installed, or Hadoop's connector cannot be downloaded."""


S3A_JARS = LockedJars(LOCK.with_name("s3a.lock"), "s3a", "the S3 connector of Hadoop", "13 MB", S3UnavailableError)


class S3Server(Process):
    """The server, with its objects in memory. Raises S3UnavailableError if it cannot be installed."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        argv = [str(_environment() / "bin" / "python"), "-m", "moto.server", "-H", HOST, "-p", str(port)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
        super().__init__("s3", argv, folder, lambda: accepts_connections(port), env)

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which Arrow and Spark find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }

    @property
    def catalog_properties(self) -> dict[str, str]:
        """For pyiceberg."""
        return {"s3.endpoint": self.url, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": REGION}

    def spark_conf(self, jars: list[Path]) -> dict[str, str]:
        return {
            "spark.jars": ",".join(map(str, jars)),
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }


def _environment() -> Path:
    """The environment with the packages of the lock file; a changed lock file means another one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saga"
    folder = base / f"s3-server-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="draft-", dir=base) as name:
            draft = Path(name, "env")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(draft)], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(draft / "bin" / "python"), "install", "--quiet"]
            options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
            if subprocess.run([*pip, *options, "-r", str(LOCK)], check=False).returncode != 0:
                raise S3UnavailableError("the S3 server of the tests could not be installed")
            draft.rename(folder)
    return folder
