"""Writes requirements.lock: the versions of constraints.txt with the hashes of their files, as the index has them; and
the same for the S3 server of the tests.

`make lock` runs it, after a change of constraints.txt. The index is the one that pip is configured for; the file names
none. `make audit` compares with the index (``--check``): a version may have been yanked, or a file exchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# pip has no command that lists the files of a version, so its own reader of the index is used.
from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"constraints.txt": "requirements.lock", "tests/helpers/s3_server.txt": "tests/helpers/s3_server.lock"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
PYTHON = re.compile(r"py2|py3\d*|cp31[1-4]")
SYSTEMS = ("any", "manylinux", "musllinux", "macosx")
"""Where the engine runs: it locks files and starts processes as POSIX has them."""


def collector() -> LinkCollector:
    command = create_command("download")
    options, _ = command.parse_args(["pip"])
    return LinkCollector.create(command._build_session(options), options=options)  # type: ignore[attr-defined]


def fits(filename: str, version: Version) -> bool:
    """True for a file of this version that some supported Python and system can install."""
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename)[1] == version
        _, found, _, tags = parse_wheel_filename(filename)
    except ValueError:
        return False
    return found == version and any(
        tag.platform.startswith(SYSTEMS) and (PYTHON.fullmatch(tag.interpreter) or tag.abi == "abi3") for tag in tags
    )


def files(index: LinkCollector, name: str, version: Version) -> Iterator[Link]:
    for location in index.search_scope.get_index_urls_locations(canonicalize_name(name)):
        page = index.fetch_response(Link(location))
        if page is not None:
            yield from (link for link in parse_links(page) if fits(link.filename, version))


def lock(pins_file: Path, lock_file: Path, index: LinkCollector) -> list[str]:
    """Write the lock, unless there are problems; with ``--check`` only compare it. The problems, each one line."""
    pins, lines, problems = PIN.findall(pins_file.read_text(encoding="utf-8")), [], []
    for name, text in sorted(pins, key=lambda pin: canonicalize_name(pin[0])):
        links = list(files(index, name, Version(text)))
        problems += [f"{name} {text} is yanked: {link.yanked_reason}" for link in links[:1] if link.is_yanked]
        hashes = sorted({link.hash for link in links if link.hash_name == "sha256" and link.hash})
        if not hashes or any(link.hash_name != "sha256" for link in links):
            problems.append(f"the index has no SHA-256 of {name} {text}")
        lines.append(" ".join([f"{name}=={text}", *(f"--hash=sha256:{one}" for one in hashes)]))
    text = "\n".join(lines) + "\n"
    if "--check" not in sys.argv and not problems:
        lock_file.write_text(text, encoding="utf-8")
    known = {line.partition(" ")[0]: set(line.split()[1:]) for line in lock_file.read_text("utf-8").splitlines()}
    for line in lines:
        # The index may list more files than before, but it must still list those that are locked.
        pin, *hashes = line.split()
        if lost := known.get(pin, set()) - set(hashes):
            problems.append(f"the index no longer has {len(lost)} of the locked files of {pin}")
    return problems


def main() -> int:
    index = collector()
    problems = [problem for pins, to in LOCKS.items() for problem in lock(ROOT / pins, ROOT / to, index)]
    if problems:
        print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
