"""The client for asyncio: coroutines around the threaded one, which does all the work.

    loop ──▶ what needs no wait: sends to a connected broker, messages that were pulled ahead
         ──▶ what may wait: a few threads of the process (`calls`)
    loop ◀── results, gathered (`loop_bridge`)

Nothing here knows how queues are shared out, sends tried again or pulls held back.
"""
