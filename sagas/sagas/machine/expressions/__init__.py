"""The expressions of a definition in a run: their names, their evaluation, and the fields that are made of them."""
