"""Serializers of message bodies: JSON, MessagePack, Avro, and their errors."""
