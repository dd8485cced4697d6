"""Settings: RocketMQ's names and texts on one side, the broker's frozen values on the other."""
