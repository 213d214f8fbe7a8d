"""The embedded stack: Temporal, PostgreSQL and a worker, started for one project and left running.

There is no daemon. Each service is an ordinary process in a session of its own; what was started is written
down in ``.saga/dev/`` and checked against the process before anything is done to it. A service is one class
in one file, listed in :mod:`saga_workers.devstack.stack`.
"""

from __future__ import annotations
