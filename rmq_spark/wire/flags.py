"""Flags: the bit fields of the protocol, for commands, stored messages, pulls and permissions.

This module has only the meanings of the bits; the code that reads the words draws their position.
"""

from __future__ import annotations

from enum import IntFlag


class CommandFlag(IntFlag):
    """The ``flag`` word of a command."""

    RESPONSE = 1
    ONE_WAY = 2


class MessageSysFlag(IntFlag):
    """The ``sysFlag`` word of a stored or sent message.

    Two fields are wider than a bit: the transaction state and the compression type. Use the masks
    with the values below them.
    """

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_MASK = 0x700


class PullSysFlag(IntFlag):
    """The ``sysFlag`` word of a pull request."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4  # the request itself carries the subscription
    CLASS_FILTER = 8
    LITE_PULL = 16


class TopicPermission(IntFlag):
    """The ``perm`` word of a topic, a queue or a broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
