"""The state of popped messages: check points and acknowledgements in the log, and queue order."""
