"""Wheels of what is installed here, for a pip without an index.

With one, pip reads all versions that there are of each package, which costs as much as to unpack them. That the pinned
versions can be fetched is seen by `make setup`, which has installed them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path, PurePosixPath
from zipfile import Path as ZipPath
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_IN_WHEELS = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")


def add_wheels(wheel: Path, extra: str) -> None:
    """Write a wheel beside this one for each distribution that it needs with an extra, directly or not."""
    waiting = list(needs(metadata_of(wheel), {extra}))
    packed, seen = set[str](), set[tuple[str, frozenset[str]]]()
    while waiting:
        required = waiting.pop()
        name, key = canonicalize_name(required.name), (required.name, frozenset(required.extras))
        installed = distribution(required.name)
        if name not in packed:
            packed.add(name)
            write_wheel(installed, wheel.parent)
        if key not in seen:
            seen.add(key)
            waiting += needs(installed, required.extras)


def metadata_of(wheel: Path) -> Distribution:
    [folder] = [path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info")]
    return PathDistribution(folder)  # pyright: ignore[reportArgumentType]


def needs(installed: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in installed.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def write_wheel(installed: Distribution, folder: Path) -> None:
    """The files of a distribution, not compressed. The headers of its C sources, which nothing here needs, are left."""
    files = installed.files or ()
    stem = next(file.parts[0] for file in files if file.parts[0].endswith(".dist-info")).removesuffix(".dist-info")
    made_at_install = {f"../../../bin/{point.name}" for point in installed.entry_points.select(group="console_scripts")}
    lines: list[str] = []
    with ZipFile(folder / f"{stem}-{tag_of(installed)}.whl", "w") as wheel:
        for file in files:
            if file.suffix == ".pyc" or file.name in NOT_IN_WHEELS or str(file) in made_at_install:
                continue
            place = PurePosixPath(file)
            if place.parts[:4] == ("..", "..", "..", "bin"):
                place = PurePosixPath(f"{stem}.data", "scripts", *place.parts[4:])
            if place.parts[0] != "..":
                wheel.write(str(file.locate()), str(place))
                lines.append(f"{place},,\n")
        record = f"{stem}.dist-info/RECORD"
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))


def tag_of(installed: Distribution) -> str:
    """The compatibility tag of the name of the wheel: each part has the values of all tags."""
    text = installed.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ").split("-") for line in text.splitlines() if line.startswith("Tag: ")]
    return "-".join(".".join(dict.fromkeys(values)) for values in zip(*tags, strict=True))
