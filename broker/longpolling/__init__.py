"""Long polling: `PullRequestHoldService`, its table, and the listener for the store's arrivals.

A pull that found nothing is suspended here. An arrival, its deadline or the end of the broker
removes it and passes it on to be replayed.
"""
