"""Changes are answered after they are saved."""

from support.brokers.connections import FakeConnection

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll.broker.processor.reply_after_save import ReplyAfterSave
from rocketpoll.broker.state.tables.table import PendingChanges


class Aside:
    """A thread that runs its jobs when the test says so."""

    def __init__(self):
        self.waiting = []

    def __call__(self, work, then):
        self.waiting.append((work, then))

    def finish(self, error=None):
        work, then = self.waiting.pop()
        work()
        then(error)


def asked(*, one_way=False):
    """Return a change that is being saved: its connection, the saving thread, and the events."""
    connection, aside, happened = FakeConnection(), Aside(), []
    request = connection.ask(RequestCode.CLEAN_UNUSED_TOPIC, one_way=one_way)
    success = request.respond(ResponseCode.SUCCESS)
    changes = PendingChanges(lambda name, value: happened.append(f"{name} is {value} again"))
    with changes.begin() as change:
        change.record("T", 2, 5)
    returned = ReplyAfterSave(aside).commit_changes(
        connection, request, lambda: happened.append("saved"), success, change
    )
    assert returned is None
    return connection, aside, happened


def test_response_is_sent_only_after_the_table_is_saved():
    connection, aside, happened = asked()
    assert (connection.sent, happened) == ([], [])
    aside.finish()
    assert [answer.code for answer in connection.sent] == [ResponseCode.SUCCESS]
    assert connection.sent[0].opaque == 7
    assert happened == ["saved"]


def test_failed_save_is_rolled_back_and_saved_before_the_answer():
    connection, aside, happened = asked()
    aside.finish(OSError(28, "no space left"))
    assert connection.sent == []
    aside.finish()
    (answer,) = connection.sent
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no space left" in answer.remark
    assert happened == ["saved", "T is 2 again", "saved"]


def test_oneway_change_gets_no_answer():
    connection, aside, _ = asked(one_way=True)
    aside.finish()
    assert connection.sent == []
