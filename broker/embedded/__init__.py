"""A broker for a test, a notebook or a program, which ends with the process that started it.

    embedded_broker   its lifecycle: settings, directory, start to stop, forks and exits
    helpers           operations on a running broker: topics, sends, all messages, waiting
    broker_thread, broker_process   the two ways to run it
    throwaway_authority
                      its certificates, if it has TLS
    faults            its clock, which its owner can advance, and faults of disk, network and power

This package and `rocketpoll.broker.testing` use the client; the rest of the broker does not.
"""

from ..settings.settings import ConfigError
from .embedded_broker import EmbeddedBroker
from .errors import EmbeddedBrokerError
from .helpers import NotInTime

__all__ = ["ConfigError", "EmbeddedBroker", "EmbeddedBrokerError", "NotInTime"]
