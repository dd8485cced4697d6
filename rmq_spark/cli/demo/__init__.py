"""``rocketpoll demo``: runs a broker, a producer and a reader in a terminal.

    command    arguments, checks for missing parts, the life of all parts, and the rate, which is
               lowered if the machine does not keep up
    clients    the producer, and the reader with ``--no-spark``
    query      the reader: a Spark stream, format("rocketpoll"), with figures about each batch
    display    figures as lines, on a terminal, in a file, or as a picture

Only `query` imports pyspark, after everything that it needs was found.
"""
