"""Bulk execution: many sagas of one definition in one workflow, each with its own machine.

Pure, as the machine is: :class:`sagas.bulk.bulk_machine.BulkMachine` turns events into commands.
"""
