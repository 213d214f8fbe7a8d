"""Simulation of sagas without a server: the real machine with in-memory participants, in virtual time."""

from __future__ import annotations

from sagas.simulation.failure_points import COLUMNS, FAULTS, FailurePoint, failure_points
from sagas.simulation.script import Environment, Script, SimulatedRun, environment_of
from sagas.simulation.simulator import sample_input, simulate
from sagas.simulation.step_calls import StepCalls

__all__ = [
    "COLUMNS",
    "FAULTS",
    "Environment",
    "FailurePoint",
    "Script",
    "SimulatedRun",
    "StepCalls",
    "environment_of",
    "failure_points",
    "sample_input",
    "simulate",
]
