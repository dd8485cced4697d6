"""Commands about messages: produce, consume, find, and dead letters."""
