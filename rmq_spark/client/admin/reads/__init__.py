"""Reading messages and topics as an operator: by key, by id, by time, as Arrow tables."""
