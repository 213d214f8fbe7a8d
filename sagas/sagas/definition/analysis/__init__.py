"""What follows from a definition before it runs: order, isolation, locks."""
