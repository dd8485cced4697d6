"""RocketMQ's wire format and stored messages: bytes to values and back, shared by both sides.

Nothing here does I/O, reads a clock or knows a socket. A reader of frames starts at `framing`, then
`command` (one request or answer), `headers` (its typed fields), `bodies`; a reader of the log
starts at `record_layout`, then `record` (one message) and `chunk` (megabytes of them).
"""
