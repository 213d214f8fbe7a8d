"""SQL as each database reads it: tokens, statements and named parameters. Pure.

Every place that takes SQL from an author reads it here, and sends what it rendered from these tokens. So no second
parser (of SQLAlchemy, psycopg or sqlglot) decides what a parameter is.
"""
