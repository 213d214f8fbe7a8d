"""The columns that the parameters of a statement reach, and the values they are compared with. Pure."""
