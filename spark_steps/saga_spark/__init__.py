"""Spark jobs as steps: staged, audited, published, undone and reconciled.

Nothing here runs Spark inside the worker: jobs run in a runner process of their own, sinks are plain Python.
"""
