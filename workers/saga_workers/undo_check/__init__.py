"""`saga verify-undo`: runs the steps of a saga and their undos on a copy of its databases, and compares all rows."""
