"""The cost of a piece of work among few rows and among many: `python -m benchmarks.growth [NAME …] [--quick]`."""
