"""Reading: reads whole queues at bulk speed, between given bounds, without a consumer group."""
