"""``rocketpoll doctor``: looks for the usual reasons why a newcomer's first stream does not run.

findings    one check's result, and how a list of them is shown
python      the Python that Spark would start, asked by running it
cluster     name server, topic and brokers, asked as the source asks them
command     which checks there are, and the exit code
"""
