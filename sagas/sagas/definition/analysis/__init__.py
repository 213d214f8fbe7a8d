"""Properties that follow from a definition before it runs: order, isolation, locks."""
