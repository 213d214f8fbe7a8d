"""The saga by hand on the plain Temporal SDK."""
