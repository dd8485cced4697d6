"""topic_names."""

from __future__ import annotations

import re

TOPIC_CHARACTERS_MAX = 255
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name, which becomes a directory's; None if nothing is."""
    if _TOPIC.fullmatch(topic):
        return None
    if not topic:
        return "the topic is blank"
    return (
        f"the topic {topic[:60]!r} must have at most {TOPIC_CHARACTERS_MAX} characters of % | a-z "
        "A-Z 0-9 _ -"
    )
