"""An independent judge of the machine: it knows the contract, a simulated world, and nothing of the implementation."""
