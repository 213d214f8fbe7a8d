"""Imported last of all that is preloaded: a collection in a child would write to, and so copy, all of its memory."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
gc.set_threshold(10_000)  # as in workers; the default takes a seventh of the processor time of a test
