"""Pulls that wait for messages: `PullRequestHoldService`, its table, and the bridge from the store.

A pull that found nothing is suspended here (`pull_request`, `pull_request`); an arrival
(`notify_message_arriving_listener`), its deadline or the end of the broker takes it out again, and
passes it on to be replayed. Nothing here reads a clock, a store or a socket: all come in as
arguments.
"""
