"""The bodies of steps: `sql`, Python actions, and how each is called."""
