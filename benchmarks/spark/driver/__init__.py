"""The part that runs inside of Spark, in a process of its own for each side: see driver.__main__.

It is started by the Python of a Spark environment and knows brokers by their addresses only. What
differs between the sides stands in `formats`; everything else is the same for both.
"""
