"""What a piece of work costs among few rows and among many: `python -m benchmarks.growth [NAME …] [--quick]`."""
