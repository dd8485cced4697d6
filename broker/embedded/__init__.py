"""A broker for a test, a notebook or a program, which ends with the process that started it.

    embedded_broker   its life: settings, directory, start to stop, forks and exits
    helpers           operations on a running broker: topics, sends, all messages, waiting
    broker_thread, broker_process   the two ways to run it

This room and `rocketpoll.broker.testing` are the only ones of the broker that know the client. No
other room knows them.
"""

from rocketpoll.broker.embedded.embedded_broker import EmbeddedBroker, EmbeddedBrokerError
from rocketpoll.broker.embedded.helpers import NotInTime

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError", "NotInTime"]
