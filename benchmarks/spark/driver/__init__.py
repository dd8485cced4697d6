"""The part that runs inside Spark, in a process of its own for each side: see driver.__main__.

The Python of a Spark environment starts it, with addresses of brokers. `formats` has the
differences between the sides; everything else is the same for both.
"""
