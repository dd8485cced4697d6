"""The part of Spark's TaskContext that the sink reads, for tests without a JVM."""


class FakeTaskContext:
    """The context of one attempt at one task."""

    def __init__(self, partition, properties, attempt=0):
        self._partition = partition
        self._properties = properties
        self._attempt = attempt

    def partitionId(self):  # noqa: N802  # Spark's name
        return self._partition

    def attemptNumber(self):  # noqa: N802  # Spark's name
        return self._attempt

    def getLocalProperty(self, name):  # noqa: N802  # Spark's name
        return self._properties.get(name)
