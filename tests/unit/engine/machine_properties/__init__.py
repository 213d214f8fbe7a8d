"""An independent oracle for the machine, based on the contract and a simulated environment, not the implementation."""
