"""Settings: RocketMQ's names and texts, and the broker's frozen values."""
