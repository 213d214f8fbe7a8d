"""Reconciliation: do two sides say the same, and do the books of all sagas agree?

:mod:`spark_steps.reconcile.compare` holds any two tables against each other. :mod:`spark_steps.reconcile.books` uses it
to hold what the sagas say against the guards, the business tables and what is published.
"""
