"""The project as it is in revisions of its git repository: what `saga diff main...` compares."""
