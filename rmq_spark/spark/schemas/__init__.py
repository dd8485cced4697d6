"""Schemas of typed bodies: Avro, and the text of option bodySchema."""
