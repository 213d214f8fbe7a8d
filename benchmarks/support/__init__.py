"""What several benchmarks need: servers, figures, definitions, the hand-written saga."""
