"""Settings of the Spark drivers of tests: alone on this machine, without a page to look at."""

from __future__ import annotations

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
PATIENT = {
    **LOCAL,
    "spark.python.authenticate.socketTimeout": "90s",  # workers start slowly on a busy machine
    # A driver that was killed as it wrote its first offset leaves a part of it, behind which Spark
    # begins no query there until a person has looked
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
