"""Installs the peers into build/peers: packages of PyPI, npm and the Go module proxy, by their ordinary clients.

Nothing of them is a dependency of the project. What is already there in the right version stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "peers"
VERSIONS = HERE / "versions.toml"

PYTHON = FOLDER / "venv" / "bin" / "python"
RESTATE_SERVER = FOLDER / "npm" / "node_modules" / ".bin" / "restate-server"
GO_PROGRAM = FOLDER / "go" / "payments"


@dataclass
class Installation:
    """The parts that can run here. ``missing``: why a part cannot, by its name (python, npm, go, dtm)."""

    missing: dict[str, str] = field(default_factory=dict)
    dtm: str | None = field(default_factory=lambda: shutil.which("dtm"))
    """DTM's server. It is no package of these registries: who wants it in the table puts it on the PATH."""

    def __post_init__(self) -> None:
        if self.dtm is None:
            self.missing["dtm"] = "there is no program dtm on the PATH"


def versions() -> dict[str, dict[str, str]]:
    """The pinned versions by kind of package."""
    return tomllib.loads(VERSIONS.read_text())


def nothing_installed() -> Installation:
    """An installation for the peers that need no package of a registry."""
    reason = "nothing was to be installed"
    return Installation({"python": reason, "npm": reason, "go": reason})


def install() -> Installation:
    """Install what is missing. What cannot be installed is named with its reason; nothing else fails for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = Installation()
    wanted = versions()
    for name, put in (("python", _put_python), ("npm", _put_npm), ("go", _put_go)):
        if reason := put(wanted.get(name, {})):
            done.missing[name] = reason
    return done


def _put_python(wanted: dict[str, str]) -> str | None:
    packages = sorted(f"{name}=={version}" for name, version in wanted.items())
    record = FOLDER / "venv" / "installed.txt"
    if record.exists() and record.read_text().split() == packages:
        return None
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    reason = _run([sys.executable, "-m", "venv", str(FOLDER / "venv")]) or _run(pip)
    if reason is None:
        record.write_text("\n".join(packages))
    return reason


def _put_npm(wanted: dict[str, str]) -> str | None:
    if shutil.which("npm") is None:
        return "there is no npm"
    packages = sorted(f"{name}@{version}" for name, version in wanted.items())
    record = FOLDER / "npm" / "installed.txt"
    if record.exists() and record.read_text().split() == packages:
        return None
    (FOLDER / "npm").mkdir(exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    reason = _run(["npm", "install", "--prefix", str(FOLDER / "npm"), *quiet, *packages])
    if reason is None:
        record.write_text("\n".join(packages))
    return reason


def _put_go(_: dict[str, str]) -> str | None:
    """Versions are in go.mod; the toolchain's cache decides what has to be built."""
    if shutil.which("go") is None:
        return "there is no Go toolchain"
    return _run(["go", "build", "-o", str(GO_PROGRAM), "."], HERE / "no_engine" / "go", GOFLAGS="-mod=mod")


def _run(words: Sequence[str], folder: Path | None = None, **environment: str) -> str | None:
    """The last line that the program has printed if it failed, else None."""
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode == 0:
        return None
    lines = done.stdout.strip().splitlines() or [f"{words[0]} ended with {done.returncode}"]
    return lines[-1]
