"""Checks the licences of the locked packages, and writes build/bom.json: a software bill of materials (CycloneDX 1.6).

It reads requirements.lock and the metadata of the installed packages, nothing else. The format is small enough to
write: a library for it would bring a dozen packages of its own into the bill.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

ACCEPTED = re.compile(
    r"apache|\bmit\b|bsd|isc\b|mpl|mozilla public|python software foundation|psf|unlicense|0bsd|zlib|cc0"
    r"|public domain|postgresql|lgpl|lesser general public",
    re.IGNORECASE,
)
"""Licences that ask nothing of a service that uses the package; LGPL because Python loads it as a separate file."""

REVIEWED: dict[str, str] = {}
"""Packages whose metadata names no licence, or one that is not accepted in general, and why they are used."""


def locked() -> dict[str, tuple[str, list[str]]]:
    """Name → version and SHA-256 hashes of the lock."""
    packages = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        pin, *hashes = line.split()
        name, _, version = pin.partition("==")
        packages[name] = (version, [one.removeprefix("--hash=sha256:") for one in hashes])
    return packages


def licence(package: Distribution) -> str:
    """The SPDX expression, else the classifiers, else the first line of the free text."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [one.rpartition("::")[2].strip() for one in metadata.get_all("Classifier") or () if "License" in one]
    return ", ".join(classifiers) or (metadata.get("License") or "").strip().partition("\n")[0]


def component(name: str, version: str, hashes: list[str], licence_name: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
    files = [{"type": "distribution", "url": purl, "hashes": [{"alg": "SHA-256", "content": one}]} for one in hashes]
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence_name:
        found["licenses"] = [{"license": {"name": licence_name}}]
    return found | {"externalReferences": files}


def audit() -> tuple[list[str], dict[str, Any]]:
    """The problems, each one line, and the bill of materials."""
    problems, components = [], []
    for name, (version, hashes) in locked().items():
        if not hashes:
            problems.append(f"{name} {version} has no hash in requirements.lock; run make lock")
        try:
            package = distribution(name)
        except PackageNotFoundError:
            problems.append(f"{name} {version} is locked but not installed; run make setup")
            continue
        if package.version != version:
            problems.append(f"{name} {package.version} is installed instead of {version}; run make setup")
        found = licence(package)
        if not ACCEPTED.search(found) and name not in REVIEWED:
            problems.append(f"{name} has the licence {found or '(none named)'}; review it and add it to REVIEWED")
        components.append(component(name, version, hashes, found or REVIEWED.get(name, "")))
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    return problems, bill


def main() -> int:
    problems, bill = audit()
    target = ROOT / "build" / "bom.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{len(bill['components'])} packages in {target.relative_to(ROOT)}")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
