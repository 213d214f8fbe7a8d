"""The console of `saga serve`: pages for people, at `/console`."""
