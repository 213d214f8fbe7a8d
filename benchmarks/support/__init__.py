"""Servers, figures, definitions and the hand-written saga that several benchmarks need."""
