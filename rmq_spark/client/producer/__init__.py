"""Producer: messages, batches and Arrow tables on their way to brokers.

It uses the instance and requests, and knows nothing of consumers, reading or administration.
"""
