"""Bulk workflows seen from outside: whether a worker has accepted one, and getting a saga out of it."""
