"""Programs that start the saga on this engine: one workflow for each saga, bulk workflows, and starts over HTTP."""
