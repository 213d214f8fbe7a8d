"""Spark jobs as steps: staged, audited, published, taken back and reconciled.

Nothing here runs Spark inside the worker: jobs run in a runner process beside it, sinks are plain Python.
"""
