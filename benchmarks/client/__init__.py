"""Benchmark of the client, against our broker and a real RocketMQ side by side at the same time.

python -m benchmarks.client [--client VERSION] [--peer VERSION] [--rounds N] [--seconds S]
                            [--only SUBSTRING] [--json PATH] [--quick]

The Java batch producer runs as a peer of ours. Memory and import time concern one process alone, so
they have no comparison by broker. All files of brokers are in the checkout's build directory.
"""
