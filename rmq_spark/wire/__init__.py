"""RocketMQ's wire format and stored messages: bytes to values and back, for client and broker.

Nothing here does I/O or reads a clock. To read about frames, start at `framing`, then `command`
(one request or response), `headers` (its typed fields), `bodies`; to read about the commit log,
start at `record_layout`, then `record` (one message) and `chunk` (megabytes of them).
"""
