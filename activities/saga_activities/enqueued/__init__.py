"""Starts and signals that an application writes in its own transactions, as rows of ``saga_enqueued``."""
