"""Where outputs become visible: one file for each kind of sink."""
