"""Typed bodies: JSON, Avro, MessagePack, Protobuf and text bodies to columns and back."""
