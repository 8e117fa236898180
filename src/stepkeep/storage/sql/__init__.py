"""The statements and row mapping that the SQL backends share; each driver adds connections and transactions."""
