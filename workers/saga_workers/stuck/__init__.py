"""Sagas that will not end by themselves: how they are found, why they are stuck, and how they go on."""
