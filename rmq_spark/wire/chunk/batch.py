"""Batch encoding: columns to the body of SEND_BATCH_MESSAGE; `message_batch` does it per message.

Every message gets an id (UNIQ_KEY), and the property WAIT, by which its sender waits until it is
stored, as messages of RocketMQ's own producers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.buffer_slices import BUFFER_BYTES_MAX, lengths_of, struct_dtype
from rmq_spark.wire.chunk.input_columns import (
    InputColumns,
    concatenate_rows,
    property_strings,
    to_binary,
    value_lengths,
)
from rmq_spark.wire.chunk.properties import encode_named
from rmq_spark.wire.message_batch import ENTRY_BYTES_MIN, HEAD
from rmq_spark.wire.properties import UNIQ_KEY, WAIT, encode_properties

_HEAD = struct_dtype(HEAD)
_WAIT_PROPERTY = encode_properties({WAIT: "true"}).encode()


def encode_batch_columns(columns: Mapping[str, Any], unique_ids: Sequence[str]) -> pa.Buffer:
    """Encode a batch from column ``body`` and optional others, such as ``keys`` and ``tags``."""
    given = InputColumns(columns)
    bodies = given.array("body")
    body_lengths = lengths_of(bodies)
    ids = encode_named(UNIQ_KEY, pa.array(unique_ids, pa.string()))
    properties = property_strings(given, ids, pa.scalar(_WAIT_PROPERTY, pa.binary()))
    properties_lengths = value_lengths(properties, given.rows)
    sizes = ENTRY_BYTES_MIN + body_lengths + properties_lengths
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise RecordError(
            "batch", at="its end", needed=f"at most {BUFFER_BYTES_MAX} bytes", found=total
        )
    head = np.zeros(given.rows, _HEAD)
    head["size"] = sizes
    head["flag"] = given.numbers("flag")
    head["body_length"] = body_lengths
    parts = (to_binary(head), bodies, to_binary(properties_lengths.astype(">i2")), properties)
    return concatenate_rows(parts, given.rows, total)
