"""Headers of consumer groups and of the clients in them."""

from typing import NamedTuple


class UnregisterClientRequestHeader(NamedTuple):
    """The groups that a client leaves: a producer group, a consumer group, or both."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


UNREGISTER_CLIENT_KEYS = {"client_id": "clientID"}


class ConsumerGroupRequestHeader(NamedTuple):
    """The header of requests that name a group and nothing else."""

    consumer_group: str
