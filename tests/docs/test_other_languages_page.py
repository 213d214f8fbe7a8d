"""The examples of docs/how-to/other-languages by their form; tests/interop builds and runs them in `make test-long`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext

FOLDER = Path(__file__).parents[2] / "docs/how-to/other-languages"
SOURCES = sorted(path for path in FOLDER.glob("*/*") if path.suffix in (".go", ".ts", ".java"))
CLIENTS = [path for path in SOURCES if "client" in path.name.lower()]
LOCK = json.loads((FOLDER / "typescript/package-lock.json").read_text("utf-8"))


def test_the_saga_is_valid() -> None:
    path = FOLDER / "booking.saga.yaml"
    definition, diagnostics = parse_text(path.read_text("utf-8"), path.name, ProjectContext({}))
    assert definition is not None
    assert diagnostics == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_source_can_be_read_at_once(source: Path) -> None:
    lines = source.read_text("utf-8").splitlines()
    assert len(lines) <= 200
    assert not [line for line in lines if len(line.expandtabs(4)) > 120]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_uses_the_policies_of_the_page(client: Path) -> None:
    policies = set(
        re.findall(r"[A-Z_]*(?:DUPLICATE|EXISTING|POLICY_FAIL|Policy\.FAIL)[A-Z_]*", client.read_text("utf-8"))
    )
    assert {re.sub(r".*POLICY_|Policy\.", "", policy) for policy in policies} == {"REJECT_DUPLICATE", "FAIL"}
    assert len(CLIENTS) == 3


def test_the_lock_has_names_versions_and_hashes_but_no_address() -> None:
    packages = {name: package for name, package in LOCK["packages"].items() if name}
    assert len(packages) > 100
    for name, package in packages.items():
        assert package["version"], name
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


@pytest.mark.parametrize("name", ["go/go.mod", "go/go.sum", "java/pom.xml", "typescript/package-lock.json"])
def test_no_lock_names_a_host_to_download_from(name: str) -> None:
    assert "://" not in (FOLDER / name).read_text("utf-8")
