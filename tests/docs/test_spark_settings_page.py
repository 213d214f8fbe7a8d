"""The reference of the settings for Spark names what the code reads, with its defaults."""

from __future__ import annotations

import re
from pathlib import Path

from saga_spark.settings import DEFAULT_RETENTION, KEYS, SparkSettings

PAGE = Path(__file__).parents[2] / "docs/reference/spark-settings.md"


def test_every_key_is_documented_with_its_default() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## `[spark]`")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    assert set(rows) == set(KEYS)
    plain = SparkSettings(root=Path())
    for key in ("master", "memory", "recycle_after", "work"):
        assert rows[key] == f"`{getattr(plain, key)}`"
    assert rows["retention"] == f"`{DEFAULT_RETENTION}`"
