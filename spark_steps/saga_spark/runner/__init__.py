"""The runner: a separate process that holds the warm Spark session, and the client through which a worker uses it."""
