"""Topic lookup: checks that topics exist, and suggests the nearest name if one does not.

    name servers ──▶ a route for each topic
                 ──▶ none: their list of topics, of which the error names the nearest

The list is fetched only after a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rmq_spark.client.api.name_servers import NameServers
from rmq_spark.client.errors import ClientError, RouteNotFound, TopicNotUsable
from rmq_spark.client.instance.routes import Routes
from rmq_spark.errors import nearest_name
from rmq_spark.wire.names import is_system_topic


class RouteSource(Protocol):
    """The part of a client that topic lookup needs."""

    @property
    def name_servers(self) -> NameServers:
        """Name servers, which know all topics."""

    @property
    def routes(self) -> Routes:
        """The routes of topics."""


def require_topics(instance: RouteSource, topics: Iterable[str]) -> None:
    """Fetch the routes of topics that are not known.

    Raises:
        RouteNotFound: The name servers do not know one of them; the error suggests a similar name.
        NoNameServer: None of them answers.
    """
    with suggest_similar_topics(instance.name_servers):
        instance.routes.require(topics)


@contextmanager
def suggest_similar_topics(name_servers: NameServers) -> Iterator[None]:
    """Enter a context that adds the nearest topic name to RouteNotFound errors.

    Raises:
        RouteNotFound: As raised within the context, with a suggested topic.
    """
    try:
        yield
    except TopicNotUsable:
        raise
    except RouteNotFound as error:
        near = nearest_name(error.topic, _user_topics(name_servers))
        if near is None:
            raise
        raise RouteNotFound(error.topic, f"{error.why} (did you mean {near}?)") from error


def _user_topics(name_servers: NameServers) -> list[str]:
    try:
        found = name_servers.admin.topics()
    except ClientError:  # the first error tells more
        return []
    return sorted(topic for topic in found if not is_system_topic(topic))
