"""The Spark session of the unit tests."""

from __future__ import annotations

from tests.helpers.small_spark import spark

__all__ = ["spark"]
