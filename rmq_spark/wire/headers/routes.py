"""Headers of routes: what every client asks of a name server."""

from typing import NamedTuple


class GetRouteInfoRequestHeader(NamedTuple):
    """The brokers and queues of a topic."""

    topic: str
    accept_standard_json_only: bool | None = None
