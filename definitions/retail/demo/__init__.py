"""The retail demo behind ``saga demo``: one real week of a shop, run as sagas, and its books checked afterwards."""

from __future__ import annotations
