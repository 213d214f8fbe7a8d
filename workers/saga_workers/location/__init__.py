"""The place where a saga lives: a run of its own, a bulk workflow, the run of its undo, or the ledger alone."""
