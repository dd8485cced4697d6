"""The Spark source and sink, ``format("rocketpoll")``.

    source          what Spark finds: makes readers and writers, imports nothing until it has to
    options         every option, parsed and checked once, on the driver
    schema          which columns, and that record batches have exactly their types
    positions       where a query starts and ends, as users say it
    source_offset   where a query stands, as it lies in the checkpoint
    broker_checks   what only brokers can tell of options, asked at load()
    addresses       where to ask a broker
    patience        how long brokers that are away are tried again
    discovery       which queues there are
    asking          one question about many queues
    holds           pulls that brokers hold until there is news
    queues          what brokers know of queues: ends, times, single messages
    start_and_end   positions and queues to offsets
    planning        arithmetic of a batch: limits, fairness, pieces for tasks
    horizon         where a query's queues end, and which of them are gone
    idling          how long a source that has nothing new waits
    continuity      whether a queue is still the one that was read
    next_batch      where the next batch ends
    task_pieces     what the tasks of a batch read
    task_bundles    several pieces for one task, where tasks are to be few
    group_progress  what brokers are told of a group
    micro_batches   one query's batches: these together, in the order that Spark asks in
    committed_options what contradicts exactly once, and what it makes of other options
    committed_batches the batches of a query that reads what manifests name
    committed_spans   spans of rows that manifests name: made by sinks, read and checked by tasks
    stream_reader, batch_reader    Spark's interfaces over these
    tasks           a task's reading: pulls to record batches
    sink_columns    which columns a sink takes, of which types
    sink_rows       rows checked, in the columns that a producer sends, each with its id
    parcels         what goes to one queue, or to any of a topic's
    sending         a task's writing: parcels to brokers, until all are stored
    send_tries      how often a sink's requests are tried, and what the last try's error says
    staging         a task's writing where a broker shows a batch to all at once
    staged_commits  the driver's word that it does, and the manifests behind it
    committing      the manifest by which a batch counts, and the topic that it is in
    writer          Spark's interfaces over these

The only folder that imports pyspark, and only `source`, the readers and the writer do. It knows the
client and the wire's chunks, never the broker.
"""
