"""MetricsService: the broker's second port, for what looks after it.

    /metrics   all metrics, as Prometheus reads them
    /healthz   200 as long as the broker's one thread answers
    /readyz    200 if messages are taken and given; else 503, and one line that says why not

It knows what is asked for under which path, and how late the loop is. What is measured is said in
`rocketmq_families` and `own_families`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from itertools import chain
from typing import Final

from rmq_spark import __version__

from ..common.connection import Work
from ..common.histogram import Histogram
from ..server.server import CannotListen
from .exposition import TEXT_FORMAT, Exposition, Family
from .http_answerer import Answer, Give, HttpAnswerer
from .own_families import OwnFamilies
from .rocketmq_families import RocketMQFamilies
from .sources import Observed

_LOOK_SECONDS: Final = 0.5


class MetricsService:
    """Metrics and health of one broker, on the loop that it runs on."""

    def __init__(
        self,
        observed: Observed,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[Work], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; ``clock`` measures in seconds how late the loop is."""
        self._why_not_ready = observed.why_not_ready
        self._loop = loop
        self._clock = clock
        self._loop_lag = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        rocketmq = RocketMQFamilies(observed)
        own = OwnFamilies(observed, self._loop_lag, __version__)
        config = observed.config()
        self._exposition = Exposition(
            lambda: chain[Family](rocketmq.families(), own.families()),
            {
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            },
            work,
            clock,
        )
        self._answerer = HttpAnswerer(
            loop,
            {"/metrics": self._metrics, "/healthz": _healthy, "/readyz": self._ready},
            name=f"rocketpoll {config.broker_name}",
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which was chosen if 0 was asked for.

        Raises:
            CannotListen: The port is in use, or the address is not this machine's.
        """
        try:
            found = await self._answerer.listen(host, port)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}; choose "
                "another metricsPort or metricsHost, or stop the program that has it"
            ) from error
        self._look_later()
        return found

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a fork of this process has to let go of."""
        return self._answerer.descriptors()

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._answerer.close()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(
            _LOOK_SECONDS, self._look, self._clock() + _LOOK_SECONDS
        )

    def _look(self, due: float) -> None:
        self._loop_lag.add(max(self._clock() - due, 0.0))
        self._answerer.look()
        self._look_later()

    def _metrics(self, give: Give) -> None:
        def given(text: bytes | None) -> None:
            if text is None:
                what = b"metrics cannot be collected; the broker's log has it\n"
                give(Answer(HTTPStatus.INTERNAL_SERVER_ERROR, what))
            else:
                give(Answer(HTTPStatus.OK, text, TEXT_FORMAT))

        self._exposition.ask(given)

    def _ready(self, give: Give) -> None:
        why_not = self._why_not_ready()
        if why_not is None:
            give(Answer(HTTPStatus.OK, b"ready\n"))
        else:
            line = " ".join(why_not.split())
            give(Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{line}\n".encode()))


def _healthy(give: Give) -> None:
    give(Answer(HTTPStatus.OK, b"ok\n"))
