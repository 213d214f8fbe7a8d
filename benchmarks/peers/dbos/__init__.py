"""The saga as a workflow of DBOS, whose steps are transactions of a datasource."""
