"""Reconciliation: :mod:`comparison` compares any two tables, :mod:`saga_reconciliation` the records of all sagas."""
