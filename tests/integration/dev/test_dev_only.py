"""`saga dev up --only`: accepted values, and a one-line error for others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.dev.conftest import Project, make_project

NAMES = "the services are temporal, postgres, kafka, worker, relay, trigger"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project in which nothing is started."""
    made = make_project(tmp_path_factory.mktemp("only") / "my shop")
    yield made
    made.call("dev", "down", "--wipe")


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    ("value", "message", "help"),
    [
        (
            "spark",
            "spark is not a separate service; the worker starts it with the first Spark step",
            "Spark needs",
        ),
        pytest.param("temporal,spark", "spark is not a separate service", NAMES, marks=pytest.mark.slow),
        ("temporel", "there is no service temporel; did you mean temporal?", NAMES),
        pytest.param("all", "there is no service all", NAMES, marks=pytest.mark.slow),
        pytest.param("", "--only names no service", NAMES, marks=pytest.mark.slow),
        (" , ", "--only names no service", NAMES),
        ("worker", "the worker cannot start without temporal and postgres; run ", "--only temporal,postgres,worker"),
        pytest.param(
            "temporal,worker",
            "the worker cannot start without postgres; run ",
            "--only temporal,postgres,worker",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "relay",
            "the relay cannot start without postgres and kafka; run ",
            "--only postgres,kafka,relay",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_value_gives_a_one_line_error(stopped: Project, value: str, message: str, help: str) -> None:
    done = stopped.call("dev", "up", "--only", value)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {message}")
    assert help in done.stderr
    assert done.stdout == ""


def test_wrong_values_have_started_nothing(stopped: Project) -> None:
    assert {status["state"] for name, status in stopped.status().items() if "state" in status} == {"stopped"}


def test_logs_of_spark(stopped: Project) -> None:
    done = stopped.call("dev", "logs", "spark")
    assert done.returncode == 2
    assert "spark is not a separate service" in done.stderr


@pytest.mark.slow
def test_names_with_commas_and_spaces(project: Project) -> None:
    status = project.up("--only", "temporal, postgres", "--only", "worker")
    assert {status[name]["state"] for name in ("temporal", "postgres", "worker")} == {"running"}
    assert project.up("--only", "worker") == status
