"""The fast path of sends that look like earlier ones of their client."""
