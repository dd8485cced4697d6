"""The broker beside a RocketMQ, both under the same unmodified Java clients in the same minutes.

python -m benchmarks.broker [--client VERSION] [--peer VERSION] [--rounds N] [--seconds S]
                            [--held N,N] [--only SUBSTRING] [--json PATH] [--quick]

All that brokers and clients write lies under the checkout's build directory, and is removed at the
end.
"""
