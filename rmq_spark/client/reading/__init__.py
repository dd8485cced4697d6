"""Reading of whole queues at bulk speed, between given bounds, without a group.

Admin and the Spark source read by it. It knows neither these, nor consumers and producers.
"""
