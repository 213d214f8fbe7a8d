"""Earlier runs of a saga: what they may have left, and how the run that repeats them deals with it.

A run of a saga is repeated if it is reset, terminated or deleted in Temporal. The new run begins at an earlier state,
while participants, guards and nested sagas keep what has happened since.

* :mod:`~sagas.machine.earlier.resets` takes over what a worker has looked up about the earlier runs. It is part of the
  state as :class:`sagas.machine.earlier_runs.EarlierRuns`, beside this folder, because the state imports it.
* :mod:`~sagas.machine.earlier.doubts`: a call of this run may repeat one of an earlier run, so a rejection proves
  nothing.
* :mod:`~sagas.machine.earlier.decisions` and :mod:`~sagas.machine.earlier.effects` serve the forward phase: the
  decisions of an earlier run stand.
* A rollback covers the steps ahead too, to which this run has not come, or which it has left out. If the states of the
  earlier runs are known, :mod:`~sagas.machine.earlier.known_steps` takes these steps over as they were left. If one is
  lost, :mod:`~sagas.machine.earlier.unknown_steps` looks up each step that may have begun.
"""

from __future__ import annotations
