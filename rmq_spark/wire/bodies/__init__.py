"""The bodies of requests and answers that are JSON, as frozen dataclasses.

`decode_body` and `encode_body` are the way in and out; for who must not take long, these are
`decode_body_in_steps` and `encode_body_in_steps`. Which class goes with which request stands in
each class's first line, unless it is only a part of others. Bodies that are no JSON:
`message_batch`, `record`.
"""

from rmq_spark.wire.bodies.body_codec import decode_body, encode_body
from rmq_spark.wire.bodies.incremental_codec import decode_body_in_steps, encode_body_in_steps

__all__ = ["decode_body", "decode_body_in_steps", "encode_body", "encode_body_in_steps"]
