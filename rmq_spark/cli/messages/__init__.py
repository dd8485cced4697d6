"""Commands about messages: produce, consume, message, and dead letters."""
