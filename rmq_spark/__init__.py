"""The side of rocketpoll that talks to brokers: wire format, client, Spark source and sink.

Importing this package stays light: it imports no pyspark, numpy, pyarrow or broker.
"""

from rmq_spark.errors import (
    BodyError,
    FrameError,
    HeaderError,
    RecordError,
    RocketPollError,
    WireError,
)

__version__ = "0.2.0.dev0"

__all__ = [
    "BodyError",
    "FrameError",
    "HeaderError",
    "RecordError",
    "RocketPollError",
    "WireError",
    "__version__",
]
