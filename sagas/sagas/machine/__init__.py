"""The saga machine: pure, deterministic and serialisable; see machine.py.

The rules that the code refers to by number are those of docs/explanation/guarantees.md. This module imports nothing, so
that clients do not load the whole machine.
"""

from __future__ import annotations
