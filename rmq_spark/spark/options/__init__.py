"""The options of source and sink: their table, parsing and checks."""
