"""The sinks in which outputs become visible: one package per kind."""
