"""The JSON bodies of requests and responses, as frozen dataclasses.

`decode_body` and `encode_body` convert them; callers that must not block use `decode_body_in_steps`
and `encode_body_in_steps`. The first line of each class names its request, unless the class is only
a part of others. Bodies that are not JSON: `message_batch`, `record`.
"""

from rmq_spark.wire.bodies.body_codec import decode_body, encode_body
from rmq_spark.wire.bodies.incremental_codec import decode_body_in_steps, encode_body_in_steps

__all__ = ["decode_body", "decode_body_in_steps", "encode_body", "encode_body_in_steps"]
