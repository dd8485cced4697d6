"""Typed bodies: JSON, Avro and text, to columns and back."""
