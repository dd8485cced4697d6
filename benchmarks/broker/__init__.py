"""Benchmark of the broker and a RocketMQ, with the same unmodified Java clients at the same time.

python -m benchmarks.broker [--client VERSION] [--peer VERSION] [--rounds N] [--seconds S]
                            [--held N,N] [--only SUBSTRING] [--json PATH] [--quick]

All files of brokers and clients are in the checkout's build directory, and are removed at the end.
"""
