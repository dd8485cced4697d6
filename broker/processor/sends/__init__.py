"""Sends: messages from producers, and back from consumers, until they are acknowledged.

Whether there is room, whether the topic takes them, what is stored, and when the answer goes out.
Nothing here knows pulls, members or operators.
"""
