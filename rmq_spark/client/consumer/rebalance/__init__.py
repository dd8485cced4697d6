"""Rebalancing: each member of a group computes its share of the queues, and the shares fit."""
