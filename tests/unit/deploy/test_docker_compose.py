"""The deployment files: what can be known about them without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sagas.settings.spark import SparkTable
from sagas.settings.table import keys

ROOT = Path(__file__).parents[3]
SAGA = [sys.executable, "-P", "-m", "saga_cli.main"]
COMPOSE = ROOT / "docker-compose.yml"
PINNED = re.compile(r"^[a-z0-9./-]+:\d+\.\d+\.?\d*[a-z0-9.-]*$")
JAAS = "KAFKA_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG"
REFERENCE = re.compile(r"\$\{([A-Z_]+)(:[?-][^}]*)?\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return YAML(typ="safe").load(COMPOSE.read_text())


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return compose["services"]


def jobs(services: dict[str, Any]) -> set[str]:
    """The services that others wait for to end."""
    waits = (item for service in services.values() for item in service.get("depends_on", {}).items())
    return {name for name, how in waits if how["condition"] == "service_completed_successfully"}


def test_all_required_services_exist(services: dict[str, Any]) -> None:
    assert {"postgresql", "temporal", "temporal-ui", "kafka", "spark", "worker", "relay", "trigger"} <= set(services)


def test_every_image_has_a_pinned_version(services: dict[str, Any]) -> None:
    images = {name: image_of(service) for name, service in services.items()}
    assert {name: image for name, image in images.items() if not PINNED.match(image)} == {}


def image_of(service: dict[str, Any]) -> str:
    """The default of the variable with which another image can be chosen, or the same by digest."""
    match = re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-([^}]+)\}", service["image"])
    assert match, service["image"]
    return match[1]


def test_every_service_has_a_health_check_and_every_job_ends(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name in jobs(services):
            assert service["restart"].startswith("on-failure:"), name
        else:
            assert service["healthcheck"]["test"], name
            assert service["restart"] == "unless-stopped", name


def test_dependencies_wait_for_health_or_for_the_end(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in jobs(services) else "service_healthy"
            assert how["condition"] == expected, f"{name} → {other}"


def test_state_is_kept_in_declared_volumes(compose: dict[str, Any], services: dict[str, Any]) -> None:
    named = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if not volume.startswith((".", "$", "/"))  # a path alone is a volume of this one container
    }
    assert named == set(compose["volumes"])
    assert {"postgresql", "kafka", "stage", "lake"} <= named


def test_mounted_files_exist(services: dict[str, Any]) -> None:
    sources = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    }
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert (ROOT / "definitions" / "retail" / "saga.toml").is_file()


HOLDERS = {
    "POSTGRES_PASSWORD": {"postgresql"},
    "TEMPORAL_DB_PASSWORD": {"postgresql", "temporal-schema", "temporal"},
    "SHOP_DB_PASSWORD": {"postgresql", "setup", "worker", "relay", "trigger"},
    "FINANCE_DB_PASSWORD": {"postgresql", "setup", "worker", "relay", "trigger"},
    "KAFKA_BROKER_PASSWORD": {"kafka", "kafka-acls"},
    "KAFKA_SETUP_PASSWORD": {"kafka", "setup"},
    "KAFKA_WORKER_PASSWORD": {"kafka", "worker"},
    "KAFKA_RELAY_PASSWORD": {"kafka", "relay"},
    "KAFKA_TRIGGER_PASSWORD": {"kafka", "trigger"},
    "SPARK_SECRET": {"spark", "spark-worker", "worker"},
    "SAGA_DEFINITION_KEY": {"worker", "trigger"},
    "SAGA_SERVE_TOKEN": {"serve"},
}
"""Who has which secret: its owner, and who has to check it."""


def test_each_service_has_only_its_own_secrets(compose: dict[str, Any], services: dict[str, Any]) -> None:
    """A service refers to no other secret in its environment, its files or its command."""
    holders: dict[str, set[str]] = {}
    for name, service in services.items():
        assert "env_file" not in service, name
        files = [compose["configs"][row["source"]] for row in service.get("configs", ())]
        for variable, _ in REFERENCE.findall(json.dumps([service, files])):
            if re.search(r"PASSWORD|SECRET|TOKEN|KEY", variable):
                holders.setdefault(variable, set()).add(name)
    assert holders == HOLDERS


def test_every_secret_is_required() -> None:
    """A password has no default, and its absence is one sentence."""
    for variable, default in REFERENCE.findall(COMPOSE.read_text()):
        if variable in HOLDERS or default.startswith(":?"):
            assert default == f":?set {variable} in .env"


def test_no_secret_is_written_down(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|PWD|SECRET|TOKEN|URL|JAAS|_KEY$", name):
                assert {variable for variable, _ in REFERENCE.findall(str(value))} & set(HOLDERS), name


def test_services_use_the_database_roles_of_their_own(services: dict[str, Any]) -> None:
    for name in ("setup", "worker", "relay", "trigger"):
        for database in ("shop", "finance"):
            url = services[name]["environment"][f"SAGA_CONNECTIONS__{database.upper()}__URL"]
            password = f"${{{database.upper()}_DB_PASSWORD:?set {database.upper()}_DB_PASSWORD in .env}}"
            assert url == f"postgresql+psycopg://{database}:{password}@postgresql:5432/{database}"


def test_kafka_asks_everybody_for_a_password(services: dict[str, Any]) -> None:
    environment = services["kafka"]["environment"]
    listeners = dict(part.split("://") for part in environment["KAFKA_LISTENERS"].split(","))
    protocols = dict(part.split(":") for part in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert {protocols[name] for name in listeners} == {"SASL_PLAINTEXT"}
    assert listeners["CONTROLLER"].startswith("localhost:")
    assert environment["KAFKA_SUPER_USERS"] == "User:broker"
    assert environment["KAFKA_AUTHORIZER_CLASS_NAME"].endswith("StandardAuthorizer")
    for name in ("setup", "worker", "relay", "trigger"):
        given = services[name]["environment"]
        assert given["SAGA_KAFKA__CLIENT__SASL_USERNAME"] == name
        assert f'user_{name}="{given["SAGA_KAFKA__CLIENT__SASL_PASSWORD"]}"' in environment[JAAS]


def test_spark_asks_everybody_for_the_secret(compose: dict[str, Any], services: dict[str, Any]) -> None:
    conf = dict(line.split(" ", 1) for line in compose["configs"]["spark-defaults"]["content"].splitlines())
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.authenticate.secret"] == "${SPARK_SECRET:?set SPARK_SECRET in .env}"
    assert conf["spark.master.rest.enabled"] == "false", "it cannot ask for the secret"
    for name in ("spark", "spark-worker", "worker"):
        [file] = services[name]["configs"]
        assert file["target"] == f"{services[name]['environment']['SPARK_CONF_DIR']}/spark-defaults.conf", name


def test_the_example_names_every_variable() -> None:
    example = (ROOT / ".env.example").read_text()
    offered = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    used = {name for name, _ in REFERENCE.findall(COMPOSE.read_text())}
    assert used == offered
    required = {name for name, default in REFERENCE.findall(COMPOSE.read_text()) if default.startswith(":?")}
    assert required == set(re.findall(r"^([A-Z_]+)=<", example, re.MULTILINE))
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_ports_are_bound_to_localhost(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", ["worker", "relay", "trigger"])
def test_stop_grace_periods_cover_running_attempts(services: dict[str, Any], name: str) -> None:
    service = services[name]
    grace = service["command"][service["command"].index("--grace") + 1]
    assert int(service["stop_grace_period"].removesuffix("s")) > int(grace.removesuffix("s"))


@pytest.mark.parametrize("name", ["worker", "relay", "trigger"])
def test_commands_exist_in_the_cli(services: dict[str, Any], name: str) -> None:
    """The CLI has each command with its options: a container with an unknown one restarts forever."""
    verb, *words = services[name]["command"]
    asked = subprocess.run([*SAGA, verb, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert [word for word in words if word.startswith("--") and word not in asked.stdout] == []


def test_every_service_gets_the_kafka_address(services: dict[str, Any]) -> None:
    [advertised] = [
        text for name, text in services["kafka"]["environment"].items() if name.endswith("ADVERTISED_LISTENERS")
    ]
    for name in ("setup", "worker", "relay", "trigger"):
        servers = services[name]["environment"]["SAGA_KAFKA__BOOTSTRAP_SERVERS"]
        assert advertised == f"CLIENTS://{servers}"
    for name in ("setup", "relay", "trigger"):
        assert "kafka" in services[name]["depends_on"], name
    extras = re.findall(r"extras=([a-z,]+)", (ROOT / "Dockerfile").read_text())
    assert all("kafka" in extra.split(",") for extra in extras)
    assert len(extras) == 2


def test_the_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases
    assert all(PINNED.match(base) and "slim" in base for base in bases)
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE), "the worker must not be root"
    assert "-c constraints.txt" in text
    # The mounted project belongs to a user of the host.
    assert "SAGA_TRUST_PROJECT=/project" in text
    assert re.search(r'^ENTRYPOINT \["saga"\]$', text, re.MULTILINE)
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for name in line.split()[:-1]}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in copied} <= set(ignored)


def test_the_image_is_named_after_the_version(services: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert image_of(services["worker"]) == f"{project['name']}:{project['version']}-spark"
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= set(re.findall(r"^COPY (\w+) \w+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def test_executors_have_the_packages_of_the_driver(services: dict[str, Any]) -> None:
    """Executors have the driver's Spark, Python and jobs; rows staged by one are where the others look for them."""
    shared = ("image", "build", "volumes")
    for name in ("spark", "spark-worker"):
        assert {key: services[name][key] for key in shared} == {key: services["worker"][key] for key in shared}, name
    settings = {name for name in services["worker"]["environment"] if name.startswith("SAGA_SPARK__")}
    assert {name.removeprefix("SAGA_SPARK__").lower() for name in settings} <= {name for name, _ in keys(SparkTable)}
    for name in ("STAGE", "WORK"):
        folder = services["worker"]["environment"][f"SAGA_SPARK__{name}"].removeprefix("file://")
        assert any(folder in volume.split(":") for volume in services["worker"]["volumes"]), folder
    python = re.search(r"^FROM python:(\d+\.\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert python is not None
    assert f"/python{python[1]}/" in services["spark"]["entrypoint"][0]


def test_the_small_image_is_the_default() -> None:
    assert re.findall(r"^ARG SPARK(?:=(.*))?$", (ROOT / "Dockerfile").read_text(), re.MULTILINE) == ["false", "", ""]


def compose_command() -> list[str] | None:
    """`docker compose`, or the older separate command; None when neither is on this machine."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    separate = shutil.which("docker-compose")
    return [separate] if separate else None


def test_docker_compose_accepts_it(tmp_path: Path) -> None:
    command = compose_command()
    if command is None:
        pytest.skip("`docker compose` is not installed on this machine")
    env_file = tmp_path / ".env"
    env_file.write_text(re.sub(r"=<[^>]*>", "=something", (ROOT / ".env.example").read_text()))
    arguments = ["--env-file", str(env_file), "--file", str(COMPOSE), "config", "--quiet"]
    checked = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    clean = {name: value for name, value in os.environ.items() if name not in env_file.read_text()}
    nothing = ["--env-file", os.devnull, "--file", str(COMPOSE), "config", "--quiet"]
    refused = subprocess.run([*command, *nothing], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=clean)
    assert refused.returncode != 0
    assert " in .env" in refused.stderr
