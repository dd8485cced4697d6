"""Rebalancing: each member of a group computes its own share of the queues."""
