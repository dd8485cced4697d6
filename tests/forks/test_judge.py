"""The fork model detects violations: each rule is broken once."""

import pytest
from forks.judge import judge

PARENT, CHILD = 1, 2

SENT = [
    {"pid": PARENT, "at": 1, "what": "tries", "body": "a"},
    {"pid": PARENT, "at": 2, "what": "sent", "body": "a", "queue": 0, "offset": 0, "id": "ID"},
]
STORED = [(0, 0, "a", "ID")]


def objections(*notes, stored=STORED):
    return judge([*SENT, *notes], stored, PARENT)


def step(**fields):
    usual = {
        "pid": CHILD,
        "at": 3,
        "what": "step",
        "role": "a",
        "kind": "lite",
        "state": "running",
        "foreign": True,
        "across": False,
        "step": "poll",
        "says": "ClientShutDown: it was started before the fork: make a new one here",
        "of_client": True,
        "value": None,
        "seconds": 0.1,
    }
    return {**usual, **fields}


def orderly(pid, offset, began, at):
    return {
        "pid": pid,
        "what": "processed",
        "group": "orderly-a",
        "kind": "orderly",
        "queue": 0,
        "offset": offset,
        "body": "a" if offset == 0 else "b",
        "began": began,
        "at": at,
    }


def test_fork_story_without_faults_has_no_objections():
    born = {"pid": CHILD, "at": 3, "what": "born", "sockets": [], "threads": 1}
    assert objections(born, step()) == []


WRONG = {
    "a socket of the parent's": [
        {"pid": CHILD, "at": 3, "what": "born", "sockets": ["7: x"], "threads": 1}
    ],
    "a consumer of the parent's that works": [step(says="ok")],
    "a refusal that does not say what to do": [step(says="ClientShutDown: no")],
    "a refusal of two lines": [step(says="ClientShutDown: make a new one here\n!")],
    "an error of Python's": [step(says="AttributeError: x", of_client=False)],
    "a producer that refuses": [step(kind="producer", step="send", says="ClientShutDown: x")],
    "a parent's consumer that is said to run": [step(step="is_running", says="ok", value=True)],
    "a step that takes long": [step(seconds=16)],
    "a child that hangs": [
        {"pid": PARENT, "at": 3, "what": "ended", "child": 2, "way": "main", "code": None}
    ],
    "a child that dies in its life": [
        {"pid": CHILD, "at": 3, "what": "lives", "how": "sys.exit"},
        {"pid": PARENT, "at": 3, "what": "ended", "child": 2, "way": "main", "code": -11},
    ],
    "a client id of two processes": [
        {"pid": PARENT, "at": 3, "what": "client", "id": "x", "role": "a"},
        {"pid": CHILD, "at": 3, "what": "client", "id": "x", "role": "a"},
    ],
    "a group that passes over a message": [
        {"pid": PARENT, "at": 3, "what": "unprocessed", "group": "g", "bodies": ["a"]}
    ],
    "a connection that is lost": [
        {"pid": PARENT, "at": 3, "what": "lost connections", "of": ["a: x"]}
    ],
    "a member that is missing": [
        {"pid": PARENT, "at": 3, "what": "members", "group": "g", "needed": ["x"], "found": []}
    ],
    "an error that is logged": [{"pid": CHILD, "at": 3, "what": "logged", "text": "Traceback"}],
    "a queue at two listeners": [orderly(PARENT, 0, 3, 5), orderly(CHILD, 0, 4, 6)],
    "a message out of order": [orderly(PARENT, 1, 3, 4)],
}


@pytest.mark.parametrize("what", WRONG)
def test_each_wrong_fork_event_is_one_objection(what):
    stored = [*STORED, (0, 1, "b", "ID2")]
    tried = {"pid": PARENT, "at": 1, "what": "tries", "body": "b"}
    assert len(objections(tried, *WRONG[what], stored=stored)) == 1


@pytest.mark.parametrize(
    "stored",
    [
        [],
        [(0, 0, "a", "ID"), (0, 1, "a", "ID2")],
        [(0, 0, "a", "ID"), (0, 1, "b", "ID2")],
    ],
    ids=["lost", "stored twice", "of nobody"],
)
def test_judge_reports_lost_or_repeated_sends(stored):
    assert objections(stored=stored)


def test_repeated_message_id_after_a_fork_is_an_objection():
    assert objections(stored=[(0, 0, "a", "ID"), (0, 1, "a", "ID")])
