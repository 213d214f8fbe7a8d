"""The saga as Restate's guide on sagas writes it, with the Python SDK."""
