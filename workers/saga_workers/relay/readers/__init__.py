"""Reads the new events of a shard, and records which of them are published."""
