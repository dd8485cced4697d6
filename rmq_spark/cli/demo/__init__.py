"""``rocketpoll demo``: a broker, a producer and a Spark stream at work on a terminal.

    command   arguments, what may be missing, and the life of all parts
    sender    the producer: messages at a rate
    query     the stream: format("rocketpoll") into figures about each batch
    view      figures to lines of text

Only `query` imports pyspark, when all that it needs was found.
"""
