"""Programs that run the saga without an engine: what survives a crash of theirs is up to the reader."""
