"""The Temporal adapter of the saga machine: the only package of ``sagas`` that depends on Temporal.

One dynamic workflow runs all sagas, so that the Web UI shows each under its own name. Commands of the machine become
activities, timers and child workflows; their results, signals and updates become its events. The machine makes all
decisions.
"""
