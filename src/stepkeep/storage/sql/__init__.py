"""The statements that the SQL backends share; each driver adds connections and transactions.

`backend` is the port over them. `tables` has the schema, `row_mapping` the way between rows and records, `connection`
what is needed of a driver; `sessions`, `checkpoints`, `bodies`, `attachments` and `leases` each have the statements of
their tables. No driver is imported here.
"""
