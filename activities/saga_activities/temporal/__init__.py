"""Temporal's activities: how they perform the calls of sagas, and tell Temporal what came of them."""
