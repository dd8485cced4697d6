"""The command line, ``rocketpoll``: one module for each command, imported by `main` when it is run.

It uses the client, and starts the broker as a separate process instead of importing it.
"""
