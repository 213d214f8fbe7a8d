"""The lock, the licences, and the policy for reports."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.supply_chain.audit import ACCEPTED, audit, component

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def test_the_lock_has_the_pinned_versions_each_with_hashes() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert {line.split()[0] for line in LOCK} == set(pins), "run make lock"
    assert [line for line in LOCK if not re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line)] == []


@pytest.mark.parametrize("name", ["requirements.lock", "constraints.txt", "SECURITY.md"])
def test_no_file_names_an_index(name: str) -> None:
    assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """Hashes, on which `make setup` relies, are checked without an index: a source archive in a folder."""
    archive = tmp_path / "shop-1.0.tar.gz"
    archive.write_bytes(b"not what was locked")
    required = tmp_path / "requirements.txt"
    required.write_text(f"shop==1.0 --hash=sha256:{hashlib.sha256(b'what was locked').hexdigest()}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-index", "--find-links", str(tmp_path)]
    if subprocess.run([*pip[:3], "--version"], capture_output=True).returncode != 0:
        pytest.skip("this environment has no pip")
    ended = subprocess.run(
        [*pip, "--require-hashes", "-r", str(required), "-d", str(tmp_path / "out")], capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "DO NOT MATCH THE HASHES" in ended.stderr


def test_setup_requires_the_hashes() -> None:
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").partition(".venv/.installed:")[2].partition("\n\n")[0]
    installs = [line for line in rule.splitlines() if "$(INSTALL)" in line]
    assert len(installs) == 4
    assert all("--require-hashes" in line or line.endswith("--no-build-isolation -e .") for line in installs)


@pytest.mark.parametrize(
    ("licence", "accepted"),
    [
        ("MIT", True),
        ("Apache-2.0", True),
        ("BSD License", True),
        ("GNU Lesser General Public License v3", True),
        ("GNU General Public License v3", False),
        ("GPL-3.0-only", False),
        ("AGPL-3.0", False),
        ("Permitted for evaluation", False),
        ("", False),
    ],
)
def test_licences(licence: str, accepted: bool) -> None:
    assert bool(ACCEPTED.search(licence)) == accepted


def test_the_licences_of_the_installed_packages_are_accepted() -> None:
    problems, bill = audit()
    assert [problem for problem in problems if "licence" in problem] == []
    assert {"psycopg", "temporalio"} <= {component["name"] for component in bill["components"]}
    entry = component("ruamel.yaml", "1", ["ab"], "MIT")
    assert entry["purl"] == "pkg:pypi/ruamel-yaml@1"
    assert entry["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": "ab"}]
