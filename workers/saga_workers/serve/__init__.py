"""`saga serve`: starts sagas and answers for their outcomes over HTTP."""
