"""Dispatch of messages to listeners, and redelivery of the messages that fail."""
