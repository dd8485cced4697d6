"""OptionReader: the options that a user wrote, by their canonical names.

Unknown options, and options that have no meaning for a use, are refused with the closest valid
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rmq_spark.errors import nearest_name
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import values
from rmq_spark.spark.options.table import OPTIONS, Use

_SPARK_OPTIONS: Final = frozenset(["checkpointlocation", "queryname"])
"""Options that Spark hands to a sink although they are meant for Spark."""

_KAFKA_OPTIONS: Final = {
    "bootstrap.servers": "namesrvaddr",
    "bootstrapservers": "namesrvaddr",
    "group.id": "consumergroup",
    "groupid": "consumergroup",
    "groupidprefix": "consumergroup",
    "security.protocol": "tls",
    "ssl.truststore.location": "tlscafile",
    "ssl.keystore.location": "tlscertfile",
    "auto.offset.reset": "startingoffsets",
    "includeheaders": "columns",
}
"""Right names, in small letters, of options that users of Kafka write, with ``kafka.`` or not."""


NO_CATALOG_TABLE: Final = (
    "a table of the catalog cannot be read by a source in Python, as Spark hands it no options: "
    "CREATE TEMPORARY VIEW orders USING rocketpoll OPTIONS (namesrvAddr 'localhost:9876', topic "
    "'orders')"
)


class OptionReader:
    """The options that a user wrote, by their canonical names.

    Unknown options, and those that have no meaning for this use, are refused with the closest
    valid name.
    """

    def __init__(self, raw_options: Mapping[str, str], uses: frozenset[Use]) -> None:
        """Take the options that were given for these uses."""
        right_names = {name.lower(): name for name in OPTIONS}
        self._texts: dict[str, str] = {}
        self._written: dict[str, str] = {}
        for name, text in raw_options.items():
            known = right_names.get(name.lower())
            if known is None:
                if name.lower() in _SPARK_OPTIONS:
                    continue
                raise OptionError(name, _unknown_option(name))
            if not uses & OPTIONS[known].uses:
                raise OptionError(
                    known,
                    f"it is of no use to the {'sink' if Use.SINK in uses else 'source'}: "
                    "leave it out",
                )
            right = OPTIONS[known].alias_of
            if right is None or not uses & OPTIONS[right].uses:
                right = known
            if right in self._texts:
                raise OptionError(known, f"it is given as {self._written[right]}, too: keep one")
            self._texts[right] = text
            self._written[right] = known

    @property
    def names(self) -> frozenset[str]:
        """The canonical names of the options that were given."""
        return frozenset(self._texts)

    def written_name(self, name: str) -> str:
        """Return an option's name as the user wrote it."""
        return self._written.get(name, name)

    def text(self, name: str) -> str | None:
        """Return the text given for an option, or None if it was not given.

        Raises:
            OptionError: The text is empty.
        """
        found = self._texts.get(name)
        if found is not None and not found.strip():
            raise OptionError(
                self.written_name(name), "it is empty: leave it out, or give it a value"
            )
        return found

    def get(self, name: str, parse: Any, default: Any = None) -> Any:
        """Return an option parsed by ``parse(name, text)``, or ``default`` if it was not given."""
        text = self.text(name)
        return default if text is None else parse(self.written_name(name), text)

    def choice(self, name: str, default: str, *others: str) -> str:
        """Return the one of these words that was given, or the first if none was given."""
        text = self.text(name)
        return (
            default
            if text is None
            else values.choice(self.written_name(name), text, default, *others)
        )

    def number(self, name: str, least: int = 1) -> int | None:
        """Return an option that is a whole number, or None if it was not given."""
        text = self.text(name)
        return None if text is None else values.whole_number(name, text, least)

    def exclusive(self, *names: str) -> str | None:
        """Return which one of these options was given, or None; two of them are refused."""
        given = [name for name in names if name in self._texts]
        if len(given) > 1:
            first, *others = map(self.written_name, given)
            raise OptionError(
                first, f"it cannot be given together with {', '.join(others)}: keep one"
            )
        return given[0] if given else None


def check_names(raw_options: Mapping[str, str]) -> None:
    """Refuse names that are not options of source or sink."""
    OptionReader(raw_options, frozenset(Use))


def _unknown_option(name: str) -> str:
    word = name.lower()
    if word == "path":
        return (
            "there is no such option: load(), save() and start() take no path, name the topic in "
            "option topic"
        )
    if word == "provider":
        return NO_CATALOG_TABLE
    if word.startswith("kafka.") or word in _KAFKA_OPTIONS:
        word = _KAFKA_OPTIONS.get(word.removeprefix("kafka."), "")
        hint = (
            f"that is Kafka's; here it is {_option_name(word)}"
            if word
            else "that is Kafka's: leave it out"
        )
        return f"there is no such option; {hint}"
    near = nearest_name(word, OPTIONS)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(OPTIONS))}"
    return f"there is no such option; {hint}"


def _option_name(word: str) -> str:
    return next(name for name in OPTIONS if name.lower() == word)
