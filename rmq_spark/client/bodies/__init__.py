"""Serializers of message bodies: JSON, MessagePack, text, Avro."""
