"""Cluster checks: asks name server, topic and brokers as the source does, to show its errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rmq_spark.cli.doctor.findings import Diagnosis
from rmq_spark.client.instance.instance import NAME_SERVER_VARIABLE
from rmq_spark.errors import RocketPollError, format_count
from rmq_spark.spark.brokers.addresses import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.table import OPTIONS, Use
from rmq_spark.spark.preflight import check_with_brokers, check_writable

_RETRY_TIMEOUT_MS: Final = "3000"


def check_cluster(
    namesrv: str | None, topic: str | None, options: Mapping[str, str] = MappingProxyType({})
) -> list[Diagnosis]:
    """Check name server, topic and brokers, as far as they are given.

    ``options`` are options of source or sink, for the connections.
    """
    address = namesrv or os.environ.get(NAME_SERVER_VARIABLE)
    if address is None:
        return [_skipped("name server", f"give --namesrv HOST:PORT, or set {NAME_SERVER_VARIABLE}")]
    given = {"retryTimeoutMs": _RETRY_TIMEOUT_MS, **options, "namesrvAddr": address}
    remedy = (
        "give the address of a name server, and --option tls=true if it speaks TLS; or start a "
        "broker: rocketpoll broker"
    )
    fault = _error_of(lambda: check_writable(write_options(_without_read_options(given))))
    if fault is not None:
        is_about_another = isinstance(fault, OptionError) and fault.option != "namesrvAddr"
        return [
            Diagnosis(
                "name server", str(fault), "correct this --option" if is_about_another else remedy
            )
        ]
    answers = Diagnosis("name server", f"{address} answers")
    if topic is None:
        return [answers, _skipped("topic", "give --topic NAME")]
    fault = _error_of(lambda: check_with_brokers(read_options({**given, "topic": topic})))
    if fault is not None:
        return [
            answers,
            Diagnosis(
                "topic", str(fault), f"check the name, or run rocketpoll topic create {topic}"
            ),
        ]
    return [
        answers,
        Diagnosis("topic", f"{topic} exists"),
        _check_brokers({**given, "topic": topic}),
    ]


def _without_read_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those for reads only; unknown ones stay, to be refused."""
    of_reads = {name.lower() for name, option in OPTIONS.items() if Use.SINK not in option.uses}
    return {name: text for name, text in given.items() if name.lower() not in of_reads}


def _error_of(check: Callable[[], object]) -> RocketPollError | None:
    try:
        check()
    except RocketPollError as error:
        return error
    return None


def _check_brokers(given: Mapping[str, str]) -> Diagnosis:
    """Check that the brokers' addresses can be reached from here, across containers, networks."""
    options = read_options(given)
    instance = instance_for(options.access)
    try:
        queues = QueueClient(options, instance)
        ends = queues.ends(sorted(queues.discover(is_forced=True)))
    except RocketPollError as error:
        return Diagnosis(
            "brokers",
            str(error),
            "set brokerIP1 of the broker to an address that this machine can reach",
        )
    finally:
        instance.shutdown()
    names = sorted({queue.broker_name for queue in ends})
    return Diagnosis(
        "brokers",
        f"{', '.join(names)}: {format_count(len(ends), 'queue')}, "
        f"{format_count(sum(ends.values()), 'message')} stored in all",
    )


def _skipped(subject: str, hint: str) -> Diagnosis:
    return Diagnosis(subject, f"not checked: {hint}", is_skipped=True)
