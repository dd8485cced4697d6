"""``rocketpoll doctor``: what usually keeps a newcomer's first stream from running, looked at one by one.

findings    one check's result, and how a list of them is shown
python      the Python that Spark would start, asked by running it
cluster     name server, topic and brokers, asked as the source asks them
command     which checks there are, and the exit code
"""
