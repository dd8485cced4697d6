"""Producer: sends messages, batches and Arrow tables to brokers."""
