"""The saga machine: pure, deterministic, serialisable. See machine.py.

Nothing is imported here: the commands alone are all a client needs of it.
"""

from __future__ import annotations
