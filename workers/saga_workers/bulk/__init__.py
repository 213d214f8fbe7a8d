"""Bulk execution around its workflow: starting it, and letting single sagas leave it."""
