"""`saga dev up` names the databases outside of the stack that need `saga setup`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.dev.conftest import Project, make_project


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = make_project(tmp_path_factory.mktemp("others") / "shop")
    (made.root / "saga.toml").write_text(
        '[connections.lite]\nurl = "sqlite:///lite.db"\n[connections.gone]\n'
        'url = "postgresql://nobody@127.0.0.1:1/gone"\n[ledger]\nconnection = "lite"\n',
        encoding="utf-8",
    )
    yield made
    made.call("dev", "down", "--wipe")


@pytest.mark.slow
def test_what_still_needs_setup(project: Project) -> None:
    first = project.saga("dev", "up", "--only", "temporal")
    assert "the connection lite is not set up: there is no file " in first
    assert "the connection gone is not set up: its database cannot be used: " in first
    assert not (project.root / "lite.db").exists()
    (project.root / "lite.db").touch()
    lines = project.saga("dev", "up", "--only", "temporal").splitlines()
    (lite,) = (line for line in lines if "lite is not" in line)
    assert "saga_guard" in lite
    assert "saga_run" in lite
    assert lite.endswith("; run `saga setup`")
    assert project.call("setup").returncode == 1  # `gone` is not there
    assert "lite is not" not in project.saga("dev", "up", "--only", "temporal")
