"""Automatic compensation (`compensate: auto`): images of the rows that a step changes, and their restoration."""
