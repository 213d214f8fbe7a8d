"""Asyncio: waits between attempts, and work that a cancellation must not interrupt."""
