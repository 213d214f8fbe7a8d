"""Reconciliation: :mod:`comparison` compares any two tables in Spark, :mod:`saga_reconciliation` the records of
all sagas in DuckDB.
"""
