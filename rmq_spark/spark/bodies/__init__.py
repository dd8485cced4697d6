"""Typed bodies: JSON, Avro and text bodies to columns and back."""
