"""Fields: the values of a submitted form, what is wrong with each, and the controls that show both.

    name  ──>  label, control with the value as it was typed, the fault or a hint

A page that finds faults shows its form again: each fault is beside its field, and nothing that was
typed is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import click

from rmq_spark.cli.console.markup.html import Child, Html, el, is_verbatim
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import RocketPollError, excerpt

NOT_SHOWN: Final = (
    "It has control characters or characters that change the direction of text, which a form "
    "cannot return."
)


class FormInput:
    """The values of a form's fields, and the faults that were found in them."""

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        self._values: Mapping[str, str] = dict(values)
        self.faults: dict[str, Child] = {}

    def change(self, **values: str) -> None:
        """Replace values that the page shows."""
        self._values = {**self._values, **values}

    @property
    def status(self) -> HTTPStatus:
        """The status of a page that shows the form."""
        return HTTPStatus.BAD_REQUEST if self.faults else HTTPStatus.OK

    def raw(self, name: str) -> str:
        r"""Return a field as it was typed; browsers send each newline as \r\n."""
        return self._values.get(name, "").replace("\r\n", "\n")

    def text(self, name: str) -> str:
        """Return a field of one line, without surrounding spaces."""
        return self.raw(name).strip()

    def lines(self, name: str) -> list[str]:
        """Return the lines of a field that are not blank."""
        return [line for line in self.raw(name).split("\n") if line.strip()]

    def pairs(self, name: str) -> dict[str, str]:
        """Return the lines ``NAME=VALUE`` of a field by name."""
        found: dict[str, str] = {}
        for line in self.lines(name):
            key, equals, value = line.partition("=")
            key = key.strip()
            if not (key and equals and value):
                raise ValueError(f"{excerpt(line)} has no name or no value. Write NAME=VALUE.")
            if key in found:
                raise ValueError(f"{excerpt(key)} occurs twice. Remove one of its lines.")
            found[key] = value
        return found

    def number(self, name: str, first: int, last: int) -> int:
        """Return a whole number within limits."""
        text = self.text(name)
        if not re.fullmatch(r"-?[0-9]{1,12}", text) or not first <= int(text) <= last:
            raise ValueError(f"Enter a whole number from {first:,} to {last:,}.")
        return int(text)

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Return the selected value; raise ValueError if it is none of the choices."""
        text = self.text(name)
        choices = list(choices)
        if text not in choices:
            raise ValueError(f"Choose one of {', '.join(choices)}.")
        return text

    @contextmanager
    def faults_of(self, name: str) -> Iterator[None]:
        """Keep an error raised within the context as the fault of a field."""
        if not is_verbatim(self.raw(name)):
            self.faults.setdefault(name, NOT_SHOWN)
        try:
            yield
        except MessageRejected as error:
            self.faults.setdefault(name, f"Needed {error.needed}, found {excerpt(error.found)}.")
        except (RocketPollError, click.ClickException):
            raise
        except ValueError as error:
            self.faults.setdefault(name, str(error))

    # ---- controls

    def text_field(
        self, name: str, label: str, hint: Child = None, **attributes: str | bool
    ) -> Html:
        """Return a field of one line."""
        control = el(
            "input",
            name=name,
            value=self._values.get(name, ""),
            autocomplete="off",
            **self._state(name),
            **attributes,
        )
        return self._field(name, label, control, hint)

    def area_field(
        self,
        name: str,
        label: str,
        hint: Child = None,
        *,
        rows: int,
        **attributes: str | int | bool,
    ) -> Html:
        """Return a field of several lines; its text follows a newline, which HTML parsers drop."""
        control = el(
            "textarea",
            "\n" + self.raw(name),
            name=name,
            rows=rows,
            spellcheck="false",
            **self._state(name),
            **attributes,
        )
        return self._field(name, label, control, hint)

    def select_field(
        self, name: str, label: str, options: Iterable[tuple[str, str]], hint: Child = None
    ) -> Html:
        """Return a field that offers values with their titles."""
        chosen = self._values.get(name, "")
        shown = [el("option", title, value=key, selected=key == chosen) for key, title in options]
        return self._field(name, label, el("select", shown, name=name, **self._state(name)), hint)

    def _state(self, name: str) -> dict[str, str | bool]:
        is_first = next(iter(self.faults), None) == name
        state: dict[str, str | bool] = {"id": _field_id(name), "aria_describedby": _note_id(name)}
        if name in self.faults:
            state |= {"aria_invalid": "true", "autofocus": is_first}
        return state

    def _field(self, name: str, label: str, control: Html, hint: Child) -> Html:
        fault = self.faults.get(name)
        note = el("span.hint", hint) if fault is None else el("span.fault", fault, role="alert")
        return el(
            "div.field",
            el("label", label, for_=_field_id(name)),
            control,
            el("div", note, id=_note_id(name)),
        )


def _field_id(name: str) -> str:
    return f"field-{name}"


def _note_id(name: str) -> str:
    return f"note-{name}"
