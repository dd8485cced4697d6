"""Route headers: the request of a topic's route, which every client sends to name servers."""

from typing import NamedTuple


class GetRouteInfoRequestHeader(NamedTuple):
    """The topic whose brokers and queues are requested."""

    topic: str
    accept_standard_json_only: bool | None = None
