"""The runner: a process of its own that holds the warm Spark session, and the client a worker drives it with."""
