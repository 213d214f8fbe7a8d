"""The reference of the Python API lists every public name of `sagas`."""

from __future__ import annotations

import re
from pathlib import Path

import sagas

PAGE = Path(__file__).parents[2] / "docs/reference/python-api.md"


def test_every_public_name_is_on_the_page() -> None:
    listed = re.findall(r"^::: sagas\.([\w.]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted([*sagas.__all__, "testing.saga", "testing.Sagas"])


def test_every_public_name_can_be_imported_and_is_described() -> None:
    assert set(sagas._LATER) <= set(sagas.__all__)
    assert all(getattr(sagas, name).__doc__ for name in sagas.__all__)
