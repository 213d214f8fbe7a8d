"""`saga setup` and `saga worker` as docker-compose.yml runs them: a project without addresses, and an environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

from tests.helpers.database_servers import HOST, postgres
from tests.helpers.free_ports import free_port
from tests.helpers.processes import TemporalServer

TIMEOUT = 120.0


def status(url: str) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_setup_then_a_worker_that_is_ready_and_drains(temporal: TemporalServer, tmp_path: Path) -> None:
    saga = str(Path(sys.executable).with_name("saga"))
    with postgres() as server:
        where = {"host": HOST, "port": server.port, "user": server.user}
        with psycopg.connect(**where, dbname="postgres", autocommit=True) as admin:
            admin.execute("create database shop")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "TEMPORAL_"))},
            "TEMPORAL_ADDRESS": temporal.address,
            "TEMPORAL_NAMESPACE": "default",
            "SAGA_CONNECTIONS__SHOP__URL": f"postgresql+psycopg://{server.user}@{HOST}:{server.port}/shop",
        }
        project = tmp_path / "shop"
        subprocess.run([saga, "init", str(project)], check=True, capture_output=True, timeout=TIMEOUT)
        for _ in range(2):
            made = subprocess.run(
                [saga, "setup"], cwd=project, env=environment, capture_output=True, text=True, timeout=TIMEOUT
            )
            assert made.returncode == 0, made.stderr
        with psycopg.connect(**where, dbname="shop") as shop:
            tables = {name for (name,) in shop.execute("select tablename from pg_tables where schemaname = 'public'")}
        assert {"saga_guard", "saga_watermark", "saga_outbox_row", "saga_version"} <= tables

        port = free_port()
        command = [saga, "worker", "--health", f"{HOST}:{port}", "--grace", "5s"]
        worker = subprocess.Popen(
            command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            end = time.monotonic() + TIMEOUT
            while status(f"http://{HOST}:{port}/readyz") != 200:
                assert worker.poll() is None, worker.communicate()[0]
                assert time.monotonic() < end, "the worker did not become ready"
                time.sleep(0.1)
            assert status(f"http://{HOST}:{port}/livez") == 200
            worker.send_signal(signal.SIGTERM)
            output, _ = worker.communicate(timeout=TIMEOUT)
            assert worker.returncode == 0, output
            assert b"Traceback" not in output
        finally:
            worker.kill()
            worker.wait()
