"""rocketpoll.opentelemetry: traces each send and each listener call of a process, and counts them.

    from rocketpoll import opentelemetry

It needs the extra ``rocketpoll[opentelemetry]``. This module re-exports
`rmq_spark.client.opentelemetry`, and must not define anything.
"""

from __future__ import annotations

from rmq_spark.client.opentelemetry import context_of, instrument, uninstrument

__all__ = ["context_of", "instrument", "uninstrument"]
