"""The functions and classes that the page about the architecture names are where it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {
    "sagas": "sagas",
    "saga_activities": "activities",
    "saga_spark": "spark_steps",
    "saga_workers": "workers",
    "saga_cli": "cli",
}
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
PLACES = re.findall(r"`((?:sagas|saga_\w+)/[\w/]+\.py)` `(\w+)`", PAGE)


def test_the_page_names_places() -> None:
    assert len(PLACES) > 10


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_exists(path: str, name: str) -> None:
    source = ROOT / ROOMS[path.partition("/")[0]] / path
    assert source.exists(), f"{path} is not there: change the page, too"
    defined = {getattr(node, "name", None) for node in ast.parse(source.read_text()).body}
    assert name in defined, f"{path} has no {name}: change the page, too"
