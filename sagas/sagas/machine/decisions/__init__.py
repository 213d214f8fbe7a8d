"""Operators' decisions: which are possible, which answers fit, and how they are carried out."""
