"""Backward recovery: compensations, effects that are looked up first, savepoints."""
