"""The command line, ``rocketpoll``: one file for each command, found by `main`.

It uses the client, and starts the broker as a process of its own instead of importing it.
"""
