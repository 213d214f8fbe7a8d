"""Services whose disk is full: a small file system of their own, on real servers."""

from __future__ import annotations

import subprocess

import pytest

from saga_workers.devstack.kafka_server import KAFKA_JARS, KafkaUnavailableError
from tests.integration.dev.conftest import SAGA, Project

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def up_on_a_small_disk(project: Project, service: str, size: str) -> subprocess.CompletedProcess[str]:
    """`dev up --only SERVICE` with a file system of ``size`` where its data goes; it is gone with the processes."""
    if subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounts in user namespaces are not allowed here")
    data = project.root / ".saga" / "dev" / service
    data.mkdir(parents=True)
    script = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'
    words = [*NAMESPACE, "sh", "-c", script, "sh", size, str(data), *SAGA, "dev", "up", "--only", service]
    return subprocess.run(words, cwd=project.root, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize(("service", "size"), [("kafka", "16k"), ("temporal", "200k")])
@pytest.mark.slow  # one service is enough, and initdb is the quickest
def test_a_server_on_a_full_disk_reports_it(project: Project, service: str, size: str) -> None:
    if service == "kafka":
        try:
            KAFKA_JARS.fetch(print)
        except KafkaUnavailableError as error:
            pytest.skip(f"Kafka: {error.message}")
    done = up_on_a_small_disk(project, service, size)
    folder = project.root / ".saga" / "dev"
    assert done.returncode == 1, done.stdout
    assert done.stderr.splitlines()[-2:] == [
        f"error: {service} exited during its start: no space is left on the disk of {folder / service}",
        f"help: saga dev logs {service}    ({folder / 'logs' / f'{service}.log'})",
    ]
    assert project.status()[service]["state"] == "failed"


@pytest.mark.slow
def test_initdb_on_a_full_disk_is_reported(project: Project) -> None:
    done = up_on_a_small_disk(project, "postgres", "1m")
    assert done.returncode == 1, done.stdout
    [message] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message.startswith("error: PostgreSQL could not create its data folder: could not ")
    assert message.endswith("No space left on device")


@pytest.mark.slow
def test_up_on_a_full_disk_is_reported(project: Project) -> None:
    script = 'mount -t tmpfs -o size=4k tmpfs "$1" && head -c 4096 /dev/zero > "$1/fill"; shift; exec "$@"'
    (project.root / ".saga").mkdir()
    words = [
        *NAMESPACE,
        "sh",
        "-c",
        script,
        "sh",
        str(project.root / ".saga"),
        *SAGA,
        "dev",
        "up",
        "--only",
        "postgres",
    ]
    done = subprocess.run(words, cwd=project.root, capture_output=True, text=True, timeout=180, check=False)
    if "mount" in done.stderr:
        pytest.skip("mounts in user namespaces are not allowed here")
    assert done.returncode == 1
    assert done.stderr == f"error: {project.root / '.saga'} cannot be written: No space left on device\n"
