"""Preflight: the checks at `load()` that need brokers, and where the queues end at that moment.

It checks that name servers answer, that topics and queues exist, and that brokers support the
filter: a RocketMQ broker that cannot parse a condition does not refuse the pull, but returns all
messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS
from rmq_spark.client.errors import (
    SQL_EXAMPLE,
    AccessDenied,
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    ConnectionClosed,
    NoNameServer,
    RouteNotFound,
    TlsFailed,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.errors import nearest_name
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import BrokersAway, BrokersGone, OptionError
from rmq_spark.spark.options.access import BrokerAccess
from rmq_spark.spark.options.options import (
    ReadOptions,
    WriteOptions,
    commits_options,
    dead_letter_options,
    is_broker_topic,
)
from rmq_spark.spark.plan.position_resolver import LoadSnapshot
from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, CheckClientRequestBody, SubscriptionData
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC, without_namespace


def check_with_brokers(options: ReadOptions) -> LoadSnapshot:
    """Check for problems at the brokers that would otherwise fail the query at its start.

    Returns the ends of the queues at this moment. The checks do not wait for brokers that do not
    answer.
    """
    now_ms = time.time_ns() // 1_000_000
    options = replace(options, access=replace(options.access, retry_timeout_ms=0))
    if options.is_committed:
        ends = _check_commits(options)
        _check_queues(replace(options, is_committed=False))
    else:
        ends = _check_queues(options)
    letters = dead_letter_options(options)
    if letters is not None:
        check_writable(letters, "deadLetterTopic")
    return LoadSnapshot(ends, now_ms)


def _check_queues(options: ReadOptions) -> Mapping[MessageQueue, int]:
    """Check topics, queues and the condition; return the end offsets of the queues."""
    selection = options.selection
    with _preflight_client(options.access, selection.option, selection.namespace) as instance:
        queues = QueueClient(options, instance)
        readable = {queue.topic for queue in queues.discover(is_forced=True)}
        for topic in sorted(set(selection.topics) - readable):
            if queues.is_routed(topic):
                raise OptionError(selection.option, f"no broker allows reading topic {topic}")
        queues.unknown_brokers(options.starting, options.ending)  # logs them
        check_filter(options, instance, queues)
        return _available_ends(queues)


def _available_ends(queues: QueueClient) -> Mapping[MessageQueue, int]:
    with suppress(BrokersAway, BrokersGone, ClientError):
        return queues.ends(queues.discover(), required=())
    return {}


def _check_commits(options: ReadOptions) -> Mapping[MessageQueue, int]:
    """Check that the commits topic exists and has one queue, or may still be created.

    Returns its end offset.
    """
    from rmq_spark.spark.exactly_once.committed_planner import check_single_queue  # noqa: PLC0415  # few queries need it

    by_commits = commits_options(options)
    (topic,) = by_commits.selection.topics
    with _preflight_client(options.access, "isolation", options.selection.namespace) as instance:
        queues = QueueClient(by_commits, instance)
        try:
            check_single_queue(queues.discover(is_forced=True))
            return _available_ends(queues)
        except RouteNotFound:
            if not options.waits_for_topic:
                raise OptionError(
                    "isolation",
                    f"there is no topic {topic}: no sink with delivery=exactly_once has written "
                    "to the topic yet. Write first, let a stream wait with option waitForTopic, "
                    "or remove this option",
                ) from None
            return {}


def check_filter(options: ReadOptions, instance: ClientInstance, queues: QueueClient) -> None:
    """Have every reachable broker check the filter condition.

    An unreachable broker is checked by the query when it reads.
    """
    if not options.is_sql:
        return
    topic_of = {queue.broker_name: queue.topic for queue in sorted(queues.discover())}
    for broker_name, topic in topic_of.items():
        subscription = SubscriptionData(
            topic=topic, sub_string=options.expression, expression_type=SQL92_EXPRESSION
        )
        body = CheckClientRequestBody(
            client_id=instance.client_id, group=options.group, subscription_data=subscription
        )
        try:
            instance.api.check_client_config(instance.routes.address_for_read(broker_name), body)
        except TRANSIENT_ERRORS:
            continue
        except BrokerRefused as error:
            raise OptionError(
                "sql",
                f"broker {broker_name} does not filter by {options.expression!r}: {error.remark}. "
                f"Write for example {SQL_EXAMPLE}",
            ) from None


def check_writable(options: WriteOptions, topic_option: str = "topic") -> None:
    """Check that the topic of a sink exists, or that its first message would create it."""
    topic = options.topic
    with _preflight_client(options.access, topic_option, options.namespace) as instance:
        if topic is None:
            instance.name_servers.admin.topics()
        else:
            instance.routes.sendable_queues(topic, DEFAULT_TOPIC, 1)


@contextmanager
def _preflight_client(
    access: BrokerAccess, topic_option: str, namespace: str | None
) -> Iterator[ClientInstance]:
    """Yield a client for a few requests, and turn its errors into option errors."""
    instance = instance_for(access)
    try:
        yield instance
    except NoNameServer as error:
        raise OptionError("namesrvAddr", f"{error}{_tls_hint(error, access)}") from None
    except RouteNotFound as error:
        raise OptionError(
            topic_option, f"{error}{_topic_hint(instance, error.topic, namespace)}"
        ) from None
    except AuthenticationFailed as error:
        raise OptionError("accessKey", str(error)) from None
    except AccessDenied as error:
        raise OptionError(topic_option, str(error)) from None
    except ClientError as error:
        raise OptionError("namesrvAddr", f"a name server returned no routes: {error}") from None
    finally:
        instance.shutdown()


def _tls_hint(error: NoNameServer, access: BrokerAccess) -> str:
    if any(isinstance(each, TlsFailed) for each in error.tries):
        return (
            " (options: tlsCaFile for the trusted authority, tlsServerName for another name, "
            "tlsCertFile and tlsKeyFile for a client certificate; tls=false for no TLS)"
        )
    if access.tls is None and any(isinstance(each, ConnectionClosed) for each in error.tries):
        return " (options: tls=true, and tlsCaFile for the trusted authority)"
    return ""


def _topic_hint(instance: ClientInstance, topic: str, namespace: str | None) -> str:
    """Return a hint with a similar topic if ``topic`` does not exist; never a system topic."""
    with suppress(ClientError):
        names = [name for name in instance.name_servers.admin.topics() if not is_broker_topic(name)]
        nearest = nearest_name(topic, sorted(names))
        # A topic that exists and cannot be used is not misspelt.
        if nearest is not None and topic not in names:
            return f". Did you mean {without_namespace(namespace, nearest)}?"
    return ""
