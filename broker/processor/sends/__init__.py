"""Sends: messages from producers, and back from consumers, until they are acknowledged."""
