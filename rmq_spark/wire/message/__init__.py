"""Messages: stored records, their properties and ids, and batches of sends."""
