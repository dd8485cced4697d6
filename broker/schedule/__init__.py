"""Delayed messages: they wait in SCHEDULE_TOPIC_XXXX, and are delivered when they are due."""
