"""Threads of the client, its end, and what a fork leaves of both.

Tasks that are due, jobs that come again, a lane for each broker. Nothing here knows what a task is
for.
"""
