"""The client: against our broker and against a real RocketMQ, side by side in the same minutes.

python -m benchmarks.client [--client VERSION] [--peer VERSION] [--rounds N] [--seconds S]
                            [--only SUBSTRING] [--json PATH] [--quick]

The Java batch producer runs beside ours; what is measured of one process alone, memory and
importing, has no broker to be compared by. All that brokers write lies under the checkout's build
directory.
"""
