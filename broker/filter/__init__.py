"""Filters of subscriptions: tags, or an SQL92 condition on properties, as in RocketMQ.

`subscription.message_filter` is the door. An SQL92 text goes through `sql_tokens` and `sql_parser`
to the tree of `sql_expression`, which is asked about one message at a time; `sql_columns` asks it
about thousands. How Java turns text into numbers and compares them is in `java_values` alone.

It knows messages by their tags codes and properties: no store, no clients, no other room of the
broker. numpy and pyarrow are imported only when many messages are first looked at: they take longer
to load than all the rest of a broker.
"""
