"""Topics and their routes, and the key-value configurations of a name server."""
