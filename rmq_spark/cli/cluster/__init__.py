"""Commands about clusters, brokers, topics and stores."""
