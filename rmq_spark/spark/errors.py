"""The errors of source and sink, worded so that users can fix the cause.

    OptionError        an option is wrong, or contradicts another; raised on the driver
    SetUpError         a package that a query needs is not installed
    SchemaError        columns do not exist or are not possible
    RowError           a row cannot be written as a message
    WriteError         rows could not be sent, or a way of writing is not supported
    CheckpointError    a checkpoint has an offset from which this release cannot continue
    DataLoss           messages that a query had not read yet are gone
    RecordFault        a message cannot be read
    BrokersAway        brokers did not answer before the retry timeout
    BrokersGone        no name server knows the brokers any more

All of them can be pickled, because Python workers send them to the driver. They end a query or a
write, whichever function raises them, so docstrings of functions list only other errors.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from rmq_spark.client.errors import BrokerNotFound
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


class SparkError(RocketPollError, page="troubleshooting.md#spark"):
    """The base class of the errors of source and sink."""


class OptionError(SparkError):
    """An option is wrong; the message has its name, the problem, and the remedy."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(option, problem)
        self.option = option
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option}: {self.problem}"


def no_effect_without(option: str, needed: str) -> OptionError:
    """Return the error for an option that was given without the one that it needs."""
    problem = f"it has no effect without {needed}. Set {needed}, or remove this option"
    return OptionError(option, problem)


class SetUpError(SparkError):
    """A package that a query needs is not installed; the message has the command to run."""


class SchemaError(SparkError):
    """The columns to read or to write are not possible."""


class RowError(SparkError):
    """A row cannot be written; the message has its place, the problem, and the remedy."""

    def __init__(self, partition: int, row: int, column: str, problem: str) -> None:
        """Take the row, counted from 0 in its partition, the column, and the problem."""
        super().__init__(partition, row, column, problem)
        self.partition = partition
        self.row = row
        self.column = column
        self.problem = problem

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition}, column {self.column}: {self.problem}"


class WriteError(SparkError):
    """Rows could not be sent, as the message explains, or a way of writing is not supported."""


class CheckpointError(SparkError):
    """The checkpoint belongs to another topic, a newer release, or another source."""


class DataLoss(SparkError):
    """Messages that were not read yet are gone; each loss names its offsets and the reason."""

    def __init__(self, losses: Sequence[str]) -> None:
        super().__init__(tuple(losses))
        self.losses = tuple(losses)

    def __str__(self) -> str:
        return (
            f"{'; '.join(self.losses)}. Set option failOnDataLoss to false to continue with what "
            "is left, or start again with another checkpoint"
        )


class RecordFault(SparkError):
    """A message cannot be read; the error has its place and the reason."""

    def __init__(self, queue: MessageQueue, queue_offset: int, problem: str) -> None:
        super().__init__(queue, queue_offset, problem)
        self.queue = queue
        self.queue_offset = queue_offset
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"the message at offset {self.queue_offset} of {self.queue} cannot be "
            f"read: {self.problem}. Set option onBadRecord to null for a row without its body, to "
            "skip to leave it out, or to dead_letter to send it to another topic"
        )


class BrokersAway(SparkError, page="troubleshooting.md#nobody-answers"):
    """A broker has not answered for too long."""

    def __init__(self, broker_name: str, timeout_ms: int, cause: Exception) -> None:
        super().__init__(broker_name, timeout_ms, cause)
        self.broker_name = broker_name
        self.cause = cause

    @property
    def unknown_brokers(self) -> tuple[str, ...]:
        """The broker's name, if it is away because no name server knows it."""
        return (self.broker_name,) if isinstance(self.cause, BrokerNotFound) else ()

    def __str__(self) -> str:
        name, timeout_ms, fault = self.args
        return (
            f"broker {name} has not answered for {timeout_ms} ms (option retryTimeoutMs): {fault}. "
            "Check that it runs and can be reached from here, or set option onBrokerAway to skip "
            "to let a stream continue without brokers that are away"
        )


class BrokersGone(SparkError, page="troubleshooting.md#topics-groups-names"):
    """No name server knows these brokers any more, while other brokers answer."""

    def __init__(self, broker_names: Sequence[str], known_brokers: Sequence[str]) -> None:
        super().__init__(tuple(broker_names), tuple(known_brokers))
        self.broker_names = tuple(broker_names)
        self.known_brokers = tuple(known_brokers)

    @property
    def unknown_brokers(self) -> tuple[str, ...]:
        """The names of the brokers that no name server knows."""
        return self.broker_names

    def __str__(self) -> str:
        return (
            f"no name server knows broker {', '.join(self.broker_names)} any more; the known "
            f"brokers are {', '.join(self.known_brokers)}. If it is down, start it, and then this "
            f'query. If it has a new name, set option brokerNames to {{"{self.broker_names[0]}": '
            '"new name"}'
        )


def import_extra(module: str) -> Any:
    """Return an optional module that the Python of this task needs."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SetUpError(
            f"the Python of tasks, {sys.executable}, has no {module}: pip install "
            f"{module.rpartition('.')[2]}"
        ) from error


def isolation_mismatch(topics: Iterable[str], isolation: str) -> CheckpointError:
    """Return the error for a query whose checkpoint was started with another ``isolation``."""
    return CheckpointError(
        f"the checkpoint is of a query that read {', '.join(sorted(topics))} with "
        f"isolation={isolation}. Restore that option, or give the query its own "
        "checkpointLocation"
    )


def describe_lost_offsets(queue: MessageQueue, start: int, end: int) -> str:
    """Describe a queue's lost offsets, from ``start`` to before ``end``, for an error or a log."""
    return f"{queue} has lost offsets {start} to {end - 1} before they were read"


def report_losses(losses: Sequence[str], *, is_failure: bool) -> None:
    """Fail the query because of lost messages, or log them and continue."""
    if losses and is_failure:
        raise DataLoss(losses)
    for loss in losses:
        _log.warning("messages are lost, continuing without them: %s", loss)
