"""MetricsService: the broker's second port, for monitoring.

    /metrics   all metrics, as Prometheus reads them
    /healthz   200 as long as the broker's one thread answers
    /readyz    200 if messages are accepted and served; else 503, and one line with the reason

It maps the paths to their responses, and measures how late the loop is. `rocketmq_families` and
`rocketpoll_families` define the metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from itertools import chain
from typing import Final

from rmq_spark import __version__

from ..common.channel import BackgroundSteps
from ..common.histogram import Histogram
from ..server.server import CannotListen
from .exposition import TEXT_FORMAT, Exposition, MetricFamily
from .http_server import HttpResponse, MetricsHttpServer, Respond
from .rocketmq_families import RocketMQFamilies
from .rocketpoll_families import OwnFamilies
from .sources import MetricsSources

_POLL_SECONDS: Final = 0.5


class MetricsService:
    """Metrics and health of one broker, on the loop that it runs on."""

    def __init__(
        self,
        sources: MetricsSources,
        loop: asyncio.AbstractEventLoop,
        run_steps: Callable[[BackgroundSteps], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; ``clock`` measures in seconds how late the loop is."""
        self._unready_reason = sources.unready_reason
        self._loop = loop
        self._clock = clock
        self._loop_lag = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        rocketmq = RocketMQFamilies(sources)
        own = OwnFamilies(sources, self._loop_lag, __version__)
        config = sources.config()
        self._exposition = Exposition(
            lambda: chain[MetricFamily](rocketmq.families(), own.families()),
            {
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            },
            run_steps,
            clock,
        )
        self._http_server = MetricsHttpServer(
            loop,
            {"/metrics": self._metrics, "/healthz": _healthy, "/readyz": self._ready},
            name=f"rocketpoll {config.broker_name}",
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0.

        Raises:
            CannotListen: The port is in use, or the address is not this machine's.
        """
        try:
            found = await self._http_server.listen(host, port)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}; choose "
                "another metricsPort or metricsHost, or stop the program that has it"
            ) from error
        self._schedule_poll()
        return found

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a forked child has to close."""
        return self._http_server.descriptors()

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._http_server.close()

    def _schedule_poll(self) -> None:
        self._timer = self._loop.call_later(
            _POLL_SECONDS, self._poll, self._clock() + _POLL_SECONDS
        )

    def _poll(self, due: float) -> None:
        self._loop_lag.add(max(self._clock() - due, 0.0))
        self._http_server.poll_accept()
        self._schedule_poll()

    def _metrics(self, respond: Respond) -> None:
        def given(text: bytes | None) -> None:
            if text is None:
                what = b"metrics cannot be collected; the broker's log has it\n"
                respond(HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, what))
            else:
                respond(HttpResponse(HTTPStatus.OK, text, TEXT_FORMAT))

        self._exposition.request(given)

    def _ready(self, respond: Respond) -> None:
        why_not = self._unready_reason()
        if why_not is None:
            respond(HttpResponse(HTTPStatus.OK, b"ready\n"))
        else:
            line = " ".join(why_not.split())
            respond(HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{line}\n".encode()))


def _healthy(respond: Respond) -> None:
    respond(HttpResponse(HTTPStatus.OK, b"ok\n"))
