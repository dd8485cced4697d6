"""Settings: declares them, and reads them from files under RocketMQ's names."""
