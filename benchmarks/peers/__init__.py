"""One saga on this engine, on other engines and without one: `python -m benchmarks.peers [--quick]`."""
