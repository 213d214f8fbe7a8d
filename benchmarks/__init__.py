"""Side-by-side measurements: `python -m benchmarks`."""

from __future__ import annotations
