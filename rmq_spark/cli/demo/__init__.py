"""``rocketpoll demo``: a broker, a producer and a reader at work on a terminal.

    command    arguments, what may be missing, and the life of all parts
    sender     the producer: messages at a rate
    pace       the rate, which is lowered where the machine does not keep up
    query      the reader: a Spark stream, format("rocketpoll") into figures about each batch
    consumer   the reader with ``--no-spark``: one that pulls
    view       figures to lines of text
    display    those lines on a terminal, in a file, or as a picture

Only `query` imports pyspark, when all that it needs was found.
"""
