"""Our Spark source and sink with our broker beside Spark's own for Kafka with a Kafka broker.

python -m benchmarks.spark [--rounds N] [--rows N] [--seconds S] [--only SUBSTRING]
                           [--peer kafka|none] [--rocketmq VERSION|none] [--spark VERSION]
                           [--json PATH] [--quick]

All that brokers and queries write lies under the checkout's build directory, and is removed at the
end.
"""
