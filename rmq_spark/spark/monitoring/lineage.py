"""LineageListener: sends OpenLineage events about the queries of a session.

Spark's own OpenLineage listener cannot look into sources in Python. This one can: a query's report
of a batch names the topics that it has read. Which topics a sink writes is in no report, so the
application names them.

    START       the first batch of a query that reads topics, or is named in ``outputs``
    RUNNING     a batch in which the query reads another topic for the first time
    COMPLETE    the query was stopped, or has ended
    FAIL        the query has ended with an error, which the event holds

A dataset is named as OpenLineage names one of Kafka: the first name server is its namespace,
``rocketmq://HOST:PORT``, and the topic is its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq_spark import __version__
from rmq_spark.client.api.name_servers import parse_addresses
from rmq_spark.client.arguments import (
    explain_all_keywords,
    wrong_kind,
)
from rmq_spark.client.errors import MessageRejected
from rmq_spark.spark.errors import SetUpError
from rmq_spark.spark.monitoring.lag import topics_read

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent
    from openlineage.client.facet_v2 import RunFacet

_log = logging.getLogger(__name__)
PRODUCER: Final = f"rocketpoll/{__version__}"


class LineageClient(Protocol):
    """The part of an ``OpenLineageClient`` that the listener uses."""

    def emit(self, event: Any) -> None:
        """Send an event."""


class _Query:
    def __init__(self, name: str, run_id: str) -> None:
        self.name = name
        self.run_id = run_id
        self.topics: frozenset[str] = frozenset()
        self.is_reported = False


@explain_all_keywords
class LineageListener(StreamingQueryListener):
    """A streaming query listener that sends OpenLineage events to the application's client.

    Add it with ``spark.streams.addListener(listener)``. The client is an ``OpenLineageClient`` of
    the package openlineage-python. An event that cannot be sent is logged and never stops a query.
    """

    def __init__(
        self,
        client: LineageClient,
        namesrv: str | Iterable[str],
        *,
        outputs: Mapping[str, Iterable[str]] = MappingProxyType({}),
        job_namespace: str = "spark",
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """Start with no query known.

        Args:
            client: Gets each event by its method ``emit``.
            namesrv: The addresses that the queries use, as in option namesrvAddr.
            outputs: Topics that a query writes, by the query's name (`queryName`).
            job_namespace: Namespace of the jobs, which are named after the queries.
            now: Returns the time of an event.

        Raises:
            SetUpError: The package openlineage-python is not installed.
            MessageRejected: There is no address of a name server.
            TypeError: The client has no ``emit``, or the topics of an output are not a list.
        """
        try:
            import openlineage.client.event_v2  # noqa: F401, PLC0415  # only applications have it
        except ImportError as error:
            raise SetUpError(
                "OpenLineage events need the module openlineage: pip install openlineage-python"
            ) from error
        addresses = parse_addresses(namesrv)
        if not addresses:
            raise MessageRejected("namesrv", "at least one address", str(namesrv))
        if not callable(getattr(client, "emit", None)):
            raise wrong_kind("client", "an OpenLineageClient", repr(client), "OpenLineageClient()")
        for name, topics in outputs.items():
            if isinstance(topics, str):  # its characters would be topics
                example = f"{{{name!r}: [{topics!r}]}}"
                raise wrong_kind("outputs", "lists of topics", f"str {topics!r}", example)
        self._client = client
        self._namespace = f"rocketmq://{addresses[0]}"
        self._outputs = {name: tuple(topics) for name, topics in outputs.items()}
        self._job_namespace = job_namespace
        self._now = now
        self._queries: dict[str, _Query] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Remember the query; its first batch shows whether it reads topics."""
        name = event.name or str(event.id)
        self._queries[str(event.runId)] = _Query(name, str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Report the query when the topics that it has read change."""
        progress = event.progress
        run_id = str(progress.runId)
        query = self._queries.setdefault(run_id, _Query(progress.name or str(progress.id), run_id))
        topics = query.topics | topics_read(progress)
        if topics == query.topics and (query.is_reported or query.name not in self._outputs):
            return
        query.topics = topics
        self._emit(query, "RUNNING" if query.is_reported else "START")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing: an idle query reads no other topics."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Report how the query has ended, if its start was reported."""
        query = self._queries.pop(str(event.runId), None)
        if query is not None and query.is_reported:
            self._emit(query, "FAIL" if event.exception else "COMPLETE", event.exception)

    def _emit(self, query: _Query, state: str, failure: str | None = None) -> None:
        query.is_reported = True
        try:
            self._client.emit(self._event(query, state, failure))
        except Exception as error:  # noqa: BLE001  # no error of a transport may stop the query
            _log.warning("sending the %s event of query %s failed: %s", state, query.name, error)

    def _event(self, query: _Query, state: str, failure: str | None) -> RunEvent:
        from openlineage.client.event_v2 import (  # noqa: PLC0415  # only applications have it
            InputDataset,
            Job,
            OutputDataset,
            Run,
            RunEvent,
            RunState,
        )
        from openlineage.client.facet_v2 import error_message_run, job_type_job  # noqa: PLC0415  # only applications have it

        facets: dict[str, RunFacet] = {}
        if failure is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=failure, programmingLanguage="python"
            )
        kind = job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="SPARK", jobType="JOB"
        )
        outputs = self._outputs.get(query.name, ())
        return RunEvent(
            eventTime=self._now().isoformat(),
            producer=PRODUCER,
            eventType=RunState[state],
            run=Run(query.run_id, facets=facets),
            job=Job(self._job_namespace, query.name, facets={"jobType": kind}),
            inputs=[InputDataset(self._namespace, topic) for topic in sorted(query.topics)],
            outputs=[OutputDataset(self._namespace, topic) for topic in outputs],
        )
