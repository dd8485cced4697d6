"""Commit log, consume queues, index files, and what keeps them equal after a crash.

`MessageStore` (message_store.py) is the door. A message goes through `appender`, `commit_log`,
`flush`, `reput` and `dispatch` to `consume_queue` and `index_service`; a pull through `reader` back
out; a start through `recovery`. All that touches files goes through `disk`.

It knows files and offsets: no sockets, no clients, no other room of the broker.
"""
