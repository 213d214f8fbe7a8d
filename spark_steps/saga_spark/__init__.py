"""Spark jobs as saga steps: staged, audited, published, undone and reconciled.

Spark never runs inside the worker: jobs run in a separate runner process, and sinks are plain Python.
"""
