"""A broker's log in a simulated world: recorded in the trace; unexpected errors fail the story.

Operators read the log only when something is wrong. So a line of level ERROR, or one with a
traceback, is a defect unless the disk had a fault.
"""

import logging
import re

_ADDRESS = re.compile(r"(?:\.\.\.|0x)\w*[0-9a-f]{6,}>")
"""Matches an object's address in a text, complete or truncated, which differs in each run."""


class Logs(logging.Handler):
    """Replaces all log handlers while a world runs."""

    loggers = ("rocketpoll.broker", "asyncio", "concurrent.futures")

    def __init__(self, kernel, note, complain, is_excused, is_expected=lambda _: False):
        super().__init__(logging.INFO)
        self._kernel = kernel
        self._note = note
        self._complain = complain
        self._is_excused = is_excused
        self._is_line_expected = is_expected
        self._before = []

    def __enter__(self):
        for name in self.loggers:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.level, logger.propagate, logger.handlers))
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.handlers = [self]
        return self

    def __exit__(self, *_):
        for logger, logger.level, logger.propagate, logger.handlers in self._before:
            logger.manager._clear_cache()

    def emit(self, record):
        actor = self._kernel.current
        if actor is not None and actor.is_killed:
            return  # its actor unwinds
        said = _ADDRESS.sub("", record.getMessage())
        line = f"{record.levelname} {record.name}: {said}"
        if record.exc_info:
            line += f": {record.exc_info[1]!r}"
        self._note(line)
        if record.levelno >= logging.ERROR or record.exc_info:
            error = record.exc_info[1] if record.exc_info else None
            if not self.is_expected(record, error):
                self._complain(f"{record.name.partition('.')[0]} logs {line}", error)

    def is_expected(self, record, error):
        """Return whether an error in the log has a known reason."""
        return self._is_excused(error) or self._is_line_expected(record)
