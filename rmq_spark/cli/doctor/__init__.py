"""``rocketpoll doctor``: looks for the usual reasons why a newcomer's first stream does not run.

findings        the result of one check, and how a list of them is shown
worker_python   the Python that Spark would start, which is run to find out
cluster         name server, topic and brokers, asked as the source asks them
command         the list of checks, and the exit code
"""
