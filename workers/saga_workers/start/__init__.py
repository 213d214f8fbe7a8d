"""Starts of sagas, one by one and together: from the CLI, a file, HTTP, Kafka and Python."""
