"""Bulk execution around its workflow: starting it, cancelling its sagas, and letting single ones leave it."""
