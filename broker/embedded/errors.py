"""EmbeddedBrokerError: an embedded broker cannot do what its owner asks of it.

Whatever the owner calls, its life or its faults, raises it. This module knows neither.
"""

from __future__ import annotations

from rmq_spark.errors import RocketPollError


class EmbeddedBrokerError(RocketPollError, page="troubleshooting.md#brokers-in-tests"):
    """An embedded broker does not run, cannot be started, or belongs to another process."""
