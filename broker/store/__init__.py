"""Commit log, consume queues, index files, and recovery, which keeps them consistent.

`MessageStore` (message_store.py) is the entry point. A message passes through `append`, the commit
log, `FlushService`, `ReputMessageService` and `Dispatcher` to consume queues and index. A pull
reads through `MessageReader`. A start recovers the log with `LogRecovery`. All file access goes
through `LocalDisk`.

Functions that read files may raise `UnreadableFile`. Functions that change files may raise OSError
and, after a failed flush, `StoreFailed`. Docstrings mention these only to add information, such as
the state left behind.
"""
