"""The pytest plugin for people who test their own sagas."""

from __future__ import annotations
