"""Parameters of SQL: each value reaches its column whole and as itself, or is refused before the statement runs.

`exact_parameters.py` is the entrance for MySQL, MariaDB and SQLite and for the columns of all databases,
`postgresql_places.py` the one for what PostgreSQL reads at the other places of a statement. What a statement does with
a parameter is read in `sagas.sql_text.parameters`; here it is compared with the catalog of the database.
"""
