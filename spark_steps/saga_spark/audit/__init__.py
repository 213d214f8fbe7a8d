"""The audit of a staged output: nothing that fails it is ever published."""
