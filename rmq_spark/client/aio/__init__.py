"""The client for asyncio: coroutines around the threaded client, which does all the work.

    loop ──▶ what needs no wait: sends to a connected broker, messages pulled ahead
         ──▶ what may block: a few threads of the process (`loop_bridge`)
    loop ◀── results, gathered (`loop_bridge`)

Only the threaded client rebalances, retries and controls the flow of messages.
"""
