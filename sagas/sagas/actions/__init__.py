"""Python actions: the decorator, how modules with them are loaded, their signatures and the context they receive."""
