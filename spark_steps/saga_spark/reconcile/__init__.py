"""Reconciliation: do two sides say the same, and do the books of all sagas agree?

:mod:`saga_spark.reconcile.compare` holds any two tables against each other. :mod:`saga_spark.reconcile.books` uses it
to hold what the sagas say against the guards, the business tables and what is published.
"""
