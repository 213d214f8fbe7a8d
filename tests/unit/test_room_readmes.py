"""The README of each room names the folders of its package, and nothing that is not there."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_message_form import ROOMS, ROOT


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_of_a_room_names_its_folders(room: str) -> None:
    package = ROOT / room
    named = re.findall(r"`([a-z_]+/|[a-z_/]+\.py)`", (package.parent / "README.md").read_text(encoding="utf-8"))
    folders = {f"{path.name}/" for path in package.iterdir() if any(path.glob("*.py"))}

    assert folders - set(named) == set()
    assert [path for path in named if not (package / path).exists()] == []
