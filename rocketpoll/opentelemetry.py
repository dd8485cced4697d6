"""OpenTelemetry for a whole process: a span for each send and listener's call, and counters.

    from rocketpoll import opentelemetry

    opentelemetry.instrument()

It needs the extra ``rocketpoll[opentelemetry]``. This module names what
`rmq_spark.client.opentelemetry` has, and must not define anything.
"""

from __future__ import annotations

from rmq_spark.client.opentelemetry import context_of, instrument, uninstrument

__all__ = ["context_of", "instrument", "uninstrument"]
