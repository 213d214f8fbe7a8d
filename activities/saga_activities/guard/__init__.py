"""The guard: records each operation of a step in the same local transaction as its effect."""
