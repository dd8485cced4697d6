"""The model: the required outcome of each step in each process, and of all messages.

It gets the notes of all processes of a story, and the messages stored in the end; it knows no
client.
"""

from collections import Counter, defaultdict
from itertools import pairwise

STEP_SECONDS = 15
"""Maximum duration of a step, on a busy machine."""

_OWN = "make a new one here"
_ALWAYS_WORK = {"health", "is_running", "shutdown", "assignment", "fetch queues", "is there"}
_SENDS = {"send", "send to a queue", "send_async", "send_batch", "send_one_way"}
_CALM = {"made", "running", "ended"}
"""Known states; an object between two states may work or refuse."""


def judge(notes, stored, parent):
    """Return the violations, a line each."""
    return [
        *_of_births(notes),
        *_of_steps(notes, parent),
        *_of_ends(notes),
        *_of_what_was_heard(notes, parent),
        *_of_clients(notes),
        *_of_messages(notes, stored),
        *_of_groups(notes, stored, parent),
        *_said_by_parent(notes),
    ]


def _of(notes, what):
    return [note for note in notes if note["what"] == what]


def _of_births(notes):
    for note in _of(notes, "born"):
        if note["sockets"]:
            yield f"child {note['pid']} has its parent's sockets: {note['sockets']}"
        if note["threads"] != 1:
            yield f"child {note['pid']} was born with {note['threads']} threads"


def _of_steps(notes, parent):
    for note in _of(notes, "step"):
        where = "parent" if note["pid"] == parent else f"child {note['pid']}"
        told = f"{where}: {note['kind']} {note['role']} ({note['state']}), {note['step']}"
        says = note["says"]
        if note["seconds"] > STEP_SECONDS:
            yield f"{told}: took {note['seconds']} s"
        if says != "ok" and not note["of_client"]:
            yield f"{told}: {says}, which is no error of the client's"
        elif "\n" in says:
            yield f"{told}: not one line: {says!r}"
        elif (needed := _needed(note)) is not None and not _is_so(note, needed):
            yield f"{told}: {says}; needed: {needed}"


def _is_so(note, needed):
    if needed in ("ok", "True", "False"):
        is_right = needed == "ok" or str(note["value"]) == needed
        return note["says"] == "ok" and is_right
    return note["says"] != "ok" and needed in note["says"]


def _needed(note):
    """Return the required outcome of a step: ok, a value, or a part of the refusal; None if several
    are right."""
    kind, state, step, foreign = note["kind"], note["state"], note["step"], note["foreign"]
    if note.get("across") or state not in _CALM:
        return "ok" if step in _ALWAYS_WORK else None
    if kind == "producer":
        if step in _SENDS:
            return "ok" if state == "running" else "ClientShutDown"
        return "ok" if step in _ALWAYS_WORK else None
    if kind in ("admin", "bulk"):
        return "True" if kind == "bulk" and state == "running" else None
    if foreign and state == "running" and not note.get("own"):
        if step in {"is_running", "health"}:
            return "False"
        return "ok" if step in _ALWAYS_WORK | {"listen"} else _OWN
    return "ok" if step in _ALWAYS_WORK or (step == "poll" and state == "running") else None


def _of_ends(notes):
    how = {note["pid"]: note["how"] for note in _of(notes, "lived")}
    lives = {note["pid"] for note in _of(notes, "lives")}
    goes_on = {note["pid"] for note in _of(notes, "goes on")}
    codes = {"os._exit": 9, "sys.exit": 7, "an exception": 1, "SIGTERM": -15}
    for note in _of(notes, "ended"):
        child, code = note["child"], note["code"]
        told = f"child {child} ({note['way']})"
        if code is None:
            yield f"{told} hangs"
        elif child in lives and child not in how:
            yield f"{told} died in its life, with {code}"
        elif child in how and code not in (codes[how[child]], 0, codes["os._exit"]):
            yield f"{told} ended by {how[child]} with {code}"
        elif child not in how and child not in goes_on:
            yield f"{told} ended with {code}, and has not lived"


def _of_what_was_heard(notes, parent):
    for note in _of(notes, "strays"):
        yield f"child {note['pid']} went on where its parent does"
    for note in _of(notes, "hangs"):
        yield f"{note['who']} hangs in {'the parent' if note['pid'] == parent else note['pid']}"
    for note in _of(notes, "raised"):
        yield f"{note['who']} raised {note['says']}"
    for note in _of(notes, "logged"):
        if "SystemExit: 7" in note["text"] or "EndOfChild" in note["text"]:
            continue
        yield f"process {note['pid']} logged an error: {note['text']}"


def _of_clients(notes):
    """Check that no two processes use one client id."""
    owners = defaultdict(set)
    for note in _of(notes, "client"):
        owners[note["id"]].add(note["pid"])
    for client, pids in owners.items():
        if len(pids) > 1:
            yield f"client id {client} is that of processes {sorted(pids)}"


def _of_messages(notes, stored):
    """Check that acknowledged messages are where the broker said, once, and others at most once.

    If a signal handler forks before a call has sent its request, both processes make the call.
    """
    twice = {note["body"] for note in _of(notes, "sent on")}
    at = {(queue, offset): body for queue, offset, body, _ in stored}
    for note in _of(notes, "sent"):
        found = at.get((note["queue"], note["offset"]))
        if found != note["body"]:
            yield f"{note['body']} was acknowledged at {note['queue']}:{note['offset']}: {found}"
    for body, count in Counter(body for _, _, body, _ in stored).items():
        if count > 1 + (body in twice):
            yield f"{body} is stored {count} times"
    ids = Counter(each for _, _, body, each in stored if body not in twice)
    for message_id, count in ids.items():
        if count > 1:
            yield f"message id {message_id} was given {count} times"
    tried = {note["body"] for note in _of(notes, "tries")}
    for _, _, body, _ in stored:
        if body not in tried:
            yield f"nobody has sent {body!r}"


def _of_groups(notes, stored, parent):
    for note in _of(notes, "unprocessed"):
        yield f"{note['group']} passed over {len(note['bodies'])}: {note['bodies'][:5]}"
    at = {(queue, offset): body for queue, offset, body, _ in stored}
    reached = {}
    for note in sorted(_of(notes, "processed"), key=lambda note: note["at"]):
        place = note["queue"], note["offset"]
        if at.get(place) != note["body"]:
            yield f"{note['group']} got {note['body']} of {place}, where {at.get(place)} is"
        if note["kind"] == "orderly":
            key = note["group"], note["queue"]
            if note["offset"] > reached.get(key, -1) + 1:
                yield f"{key} went from {reached.get(key, -1)} to {note['offset']}"
            reached[key] = max(reached.get(key, -1), note["offset"])
    yield from _of_two_at_once(notes)


def _of_two_at_once(notes):
    """Check that no queue of an orderly group is processed by two listeners at once."""
    spans = defaultdict(list)
    for note in _of(notes, "processed"):
        if note["kind"] == "orderly":
            spans[note["group"], note["queue"]].append((note["began"], note["at"], note["pid"]))
    for key, each in spans.items():
        each.sort()
        for (_, ended, one), (began, _, other) in pairwise(each):
            if began < ended and one != other:
                yield f"{key} was at processes {one} and {other} at once"


def _said_by_parent(notes):
    for note in _of(notes, "lost connections"):
        yield f"the parent has lost its connections: {note['of']}"
    for note in _of(notes, "members"):
        yield f"{note['group']} has members {note['found']}; needed: {note['needed']}"
