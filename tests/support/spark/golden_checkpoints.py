"""The checkpoints of released versions and their brokers' stores, from
`spark/golden/make_golden`."""

from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "spark" / "golden"
TOPICS = ("golden-a", "golden-b")
QUERIES = {
    "subscribe": {"subscribe": ",".join(TOPICS)},
    "pattern": {"subscribePattern": "golden-.*"},
}
BATCHES = 3
SETTINGS = {
    "brokerName": "golden",
    "mappedFileSizeCommitLog": 1 << 14,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "maxMessageSize": 1 << 12,
    "messageIndexEnable": False,
}


def releases():
    """Return the directory of each release and Spark version."""
    return sorted(path.parent for path in GOLDEN.glob("*/*/store"))


def offsets(checkpoint):
    """Return the source offset of each batch as text: the last line of Spark's file."""
    files = sorted((checkpoint / "offsets").iterdir(), key=lambda path: int(path.name))
    return [path.read_text().splitlines()[-1] for path in files]


def unread():
    """Return the bodies that no batch has read."""
    return [f"unread {number} of {topic}" for topic in TOPICS for number in range(3)]
