"""Reading messages and topics as an operator: by key, by time, as tables."""
