"""What a step runs: `sql`, Python actions, and how each is called."""
