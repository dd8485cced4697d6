"""The command line, ``rocketpoll``. Not built yet.

It will use the client, and start the broker as a process of its own instead of importing it.
"""
