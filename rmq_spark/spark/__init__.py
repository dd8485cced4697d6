"""The Spark source and sink, ``format("rocketpoll")``.

    source          what Spark finds: makes readers and writers, imports nothing until it has to
    options         every option, parsed and checked once, on the driver
    schema          which columns, and that record batches have exactly their types
    positions       where a query starts and ends, as users say it
    source_offset   where a query stands, as it lies in the checkpoint
    queues          what brokers know of queues: ends, times, single messages, and waiting for news
    start_and_end   positions and queues to offsets
    planning        which offsets the next batch takes: limits, fairness, pieces for tasks
    micro_batches   one query's batches: what is new, what is lost, what is next
    stream_reader, batch_reader    Spark's interfaces over these
    tasks           a task's reading: pulls to record batches
    writer          a task's writing

The only folder that imports pyspark, and only `source`, the readers and the writer do. It knows the client
and the wire's chunks, never the broker.
"""
