"""The saga machine: pure, deterministic and serialisable; see machine.py.

This module imports nothing, so that clients do not load the whole machine.
"""

from __future__ import annotations
