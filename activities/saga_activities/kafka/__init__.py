"""Shared by all Kafka clients of the engine: client configuration, errors, topics, transactions and record format."""

from __future__ import annotations
