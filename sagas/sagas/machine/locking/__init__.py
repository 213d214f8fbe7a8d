"""Semantic locks, and waits for rows that belong to another saga."""
