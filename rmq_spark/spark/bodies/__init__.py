"""Typed bodies: JSON, Avro, MessagePack and text bodies to columns and back."""
