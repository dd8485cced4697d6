"""Log formats of the broker's program: lines for people, or JSON for log collectors.

Each JSON record is one line, with its time in UTC.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Final

LOG_FORMATS: Final = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        said = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    """Log to stderr, from INFO on, in one of `LOG_FORMATS`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
