"""Topics: their settings, their routes as from a name server, and its key-value configurations."""
