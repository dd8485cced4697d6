"""Filters of subscriptions: tags, or an SQL92 condition on properties, as in RocketMQ.

`subscription.message_filter` is the entry point. `sql_parser` turns an SQL92 text into a tree of
`sql_expression`, which decides on one message at a time; `sql_columns` decides on thousands.
`java_values` turns texts into numbers, and compares them, as Java does.

numpy and pyarrow are imported only when many messages are filtered for the first time: they take
longer to load than all the rest of a broker.
"""
