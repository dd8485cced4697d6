"""Stories with formatted bodies: producers send text, JSON or Avro, and invalid bodies; queries
read and sinks write columns of them.

A separate random generator draws them, so that the rest of the story is the same without. The world
encodes and decodes bodies with code of its own, not the product's.
"""

import io
import json
import random
from dataclasses import replace

import fastavro
from world.spark.rarities import is_reader, is_sink, with_sources_changed
from world.story import Step

_TYPED = 0.3
_READS_TYPED = 0.8
_WRITES_TYPED = 0.6
_BAD = 0.15

SCHEMA = "number BIGINT, text STRING"
_AVRO = {
    "type": "record",
    "name": "topLevelRecord",
    "fields": [
        {"name": "number", "type": ["null", "long"]},
        {"name": "text", "type": ["null", "string"]},
    ],
}
_PARSED = fastavro.parse_schema(_AVRO)


# ---- drawing


def with_formats(story):
    """Return the story with formatted bodies, or unchanged."""
    dice = random.Random(f"{story.seed} formats")
    if dice.random() < _TYPED:
        kind = dice.choice(("text", "json", "json", "avro"))
        story = with_sources_changed(
            story, is_reader, lambda source: _read_typed(dice, kind, source)
        )
        story = replace(story, clients=tuple(_sending(kind, client) for client in story.clients))
    return _with_typed_sinks(random.Random(f"{story.seed} formats of sinks"), story)


def _sending(kind, client):
    steps = tuple(
        Step(step.kind, {**step.arguments, "format": kind}) if step.kind == "send" else step
        for step in client.steps
    )
    return replace(client, steps=steps)


def _read_typed(dice, kind, source):
    then = {"on_bad_record_then": dice.choice(("null", "skip"))}
    how = {"onBadRecord": dice.choice(("fail", "null", "skip"))}
    if dice.random() >= _READS_TYPED:
        return source
    options = {**how, **source["options"], **_format(dice, kind)}
    in_one = dice.random() < 0.3
    fields = ["value"] if in_one else ["body"] if kind == "text" else ["number", "text"]
    if in_one:
        options["bodyColumn"] = "value"
    if kind != "text" and dice.random() < 0.3:
        fields.append("body")
    options["columns"] = ",".join(
        name
        for column in options["columns"].split(",")
        for name in (fields if column == "body" else [column])
    )
    return {**then, **source, "options": options}


def _format(dice, kind):
    if kind == "text":
        return {"bodyFormat": kind}
    schema = SCHEMA if kind == "json" or dice.random() < 0.5 else json.dumps(_AVRO)
    return {"bodyFormat": kind, "bodySchema": schema}


def _with_typed_sinks(dice, story):
    kind = dice.choice(("text", "json", "avro"))
    if dice.random() >= _WRITES_TYPED:
        return story
    story = with_sources_changed(
        story,
        is_sink,
        lambda sink: {**sink, "options": {**sink["options"], "bodyFormat": kind}},
    )
    return with_sources_changed(
        story,
        lambda client: client.name.startswith("committed"),
        lambda source: _read_as_written(dice, kind, source),
    )


def _read_as_written(dice, kind, source):
    options = {**source["options"], **_format(dice, kind)}
    if kind != "text":
        options["columns"] = options["columns"].replace("body", "number,text")
    return {**source, "options": options}


# ---- bodies of producers


def body_of(kind, number, size):
    """Return a body of a format that identifies its message."""
    text = f"m{number} é".ljust(size, ".")
    return written(kind, {"number": number, "text": text})


def bad_body_of(dice, kind, number, size):
    """Return an invalid body that still identifies its message."""
    name = f"m{number} ".encode()
    if kind == "text":
        return name + dice.choice((b"\xff", b"\xc3", b"\xed\xa0\x80")).ljust(size, b".")
    good = body_of(kind, number, size)
    if kind == "avro":
        return dice.choice((good + b"\0", good[:-1], name))
    return dice.choice(
        (
            good[:-1],
            name,
            good + b"{}",
            b"[" + good + b"]",
            good.replace(b'"number":', b'"number":1e400, "n":'),
            good.replace(b'"number":', b'"number":"", "n":'),
            good.replace("é".encode(), b"\xff"),
        )
    )


def is_bad(dice):
    """Draw whether the next body is invalid."""
    return dice.random() < _BAD


def written(kind, fields):
    """Encode these fields as a body; for text, all fields."""
    if kind == "text":
        return fields["text"].encode()
    if kind == "json":
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _PARSED, fields)
    return stream.getvalue()


def read(kind, body):
    """Return the fields of a body; None if it is invalid."""
    try:
        if kind == "text":
            return {"text": body.decode()}
        if kind == "json":
            return json.loads(body)
        stream = io.BytesIO(body)
        found = fastavro.schemaless_reader(stream, _PARSED, None)
    except (ValueError, LookupError, EOFError, TypeError):
        return None
    return found if stream.tell() == len(body) else None


# ---- fields of typed rows


def fields_in(row, options):
    """Return the body fields of a row; None if all are null."""
    if "bodyColumn" in options:
        value = row["value"]
        return {"text": value} if isinstance(value, str) else value
    if options["bodyFormat"] == "text":
        return None if row["body"] is None else {"text": row["body"]}
    found = {"number": row["number"], "text": row["text"]}
    return None if set(found.values()) == {None} else found


# ---- bodies of sinks


def columns_of(kind, body):
    """Return the columns that identify a sink's row, from some bytes."""
    if kind is None:
        return (body,)
    text = body.decode()
    return (text,) if kind == "text" else (_number_in(text), text)


def known_by(kind, body):
    """Return the identity of the row in a sink's body; None if there is none."""
    if kind is None:
        return body
    fields = read(kind, body)
    if fields is None or (kind != "text" and fields != of_row(fields.get("text", ""))):
        return None
    return fields["text"].encode()


def known_by_row(row, options):
    """Return the identity of a row that was read in columns."""
    if "bodyFormat" not in options:
        return row["body"]
    fields = fields_in(row, options)
    is_whole = options["bodyFormat"] == "text" or fields == of_row(fields["text"])
    return fields["text"].encode() if is_whole else None


def of_row(text):
    """Return the fields from which a sink makes a body."""
    return {"number": _number_in(text), "text": text}


def _number_in(text):
    number = text.partition("/")[2].partition(" ")[0]
    return int(number) if number.isdigit() else None
