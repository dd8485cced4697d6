"""Pulls that wait for messages: PullRequestHoldService and its table. Not built yet.

It will be told what time it is and which messages arrived; it reads neither clock nor store.
"""
