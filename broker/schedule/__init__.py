"""Delayed messages: how they wait in SCHEDULE_TOPIC_XXXX, and how they come out of it in time.

It uses the store and the tables, and knows no requests, no connections and no processor.
"""
