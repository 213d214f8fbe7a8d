"""A saga without a server: the real machine against participants in memory, in virtual time."""

from __future__ import annotations

from sagas.simulation.driver import simulate
from sagas.simulation.failures import FAULTS, Cell, every_failure
from sagas.simulation.inventing import sample_input
from sagas.simulation.run import Outside, Run
from sagas.simulation.script import Script
from sagas.simulation.surroundings import outside_of

__all__ = ["FAULTS", "Cell", "Outside", "Run", "Script", "every_failure", "outside_of", "sample_input", "simulate"]
