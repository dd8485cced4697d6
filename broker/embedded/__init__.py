"""A broker for a test, a notebook or a program, which ends with the process that started it.

    embedded_broker   its life: settings, directory, start to stop, forks and exits
    helpers           operations on a running broker: topics, sends, all messages, waiting
    broker_thread, broker_process   the two ways to run it
    clock             its time, which its owner moves: moving says how, event_loop how timers notice
    faults            what its owner does to it, in network and embedded_disk, which it stands on

This room and `rocketpoll.broker.testing` are the only ones of the broker that know the client. No
other room knows them.
"""

from .embedded_broker import EmbeddedBroker
from .errors import EmbeddedBrokerError
from .helpers import NotInTime

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError", "NotInTime"]
