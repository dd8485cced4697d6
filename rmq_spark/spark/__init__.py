"""The Spark source and sink, ``format("rocketpoll")``.

    data_source     RocketPollDataSource, the class that Spark finds; makes readers and writers
    batch_reader, stream_reader, writer     Spark's interfaces, over the packages below
    worker_python   checks that the Python of the query has the packages that it needs
    preflight       checks at load() that need an answer from brokers
    options/        every option, parsed and checked once, on the driver
    schemas/        the columns of source and bodies, and their Arrow and Avro types
    bodies/         typed bodies: JSON, Avro and others to columns and back
    brokers/        requests to the brokers of many queues: discovery, fan-out, held pulls
    plan/           where a micro-batch starts and ends, and the ranges that its tasks read
    read/           a task's reading: pulls to record batches
    write/          a task's sending: rows to messages, and to brokers until all are stored
    exactly_once/   manifests, staged batches, and the reader of committed rows
    checkpoint, lag   a query's checkpoint and lag, read from outside the query

Planning runs on the driver, reading and sending in tasks.
"""
