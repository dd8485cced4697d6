"""Serializers of message bodies: JSON, MessagePack, text and Avro, and their errors."""
