"""Headers of routes: what every client asks of a name server."""

from typing import NamedTuple


class GetRouteInfoRequestHeader(NamedTuple):
    """The topic whose brokers and queues are asked for."""

    topic: str
    accept_standard_json_only: bool | None = None
