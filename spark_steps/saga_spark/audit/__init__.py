"""The audit of a staged output. Output that fails it is never published."""
