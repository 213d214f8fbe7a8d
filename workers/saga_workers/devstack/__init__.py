"""The embedded stack: Temporal, PostgreSQL, Kafka and the project's own processes, started once and left running.

There is no daemon. Each service is an ordinary process in a session of its own; it is recorded in ``.saga/dev/``, and
the record is checked against the process before anything is done to it. A service is a subclass of
:class:`~saga_workers.devstack.service.Service`, listed in :mod:`saga_workers.devstack.stack`.
"""

from __future__ import annotations
