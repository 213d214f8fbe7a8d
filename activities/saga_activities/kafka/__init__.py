"""What everything that speaks to Kafka shares: the client's settings, its errors, topics, and the form of a record."""

from __future__ import annotations
