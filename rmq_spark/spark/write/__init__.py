"""Writing rows: their messages, routing and sending."""
