"""The dispatcher finds a request's handler by its code, and turns exceptions into responses."""

import errno
import os

import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import never_parked
from support.suite.clocks import Clock
from support.suite.log_records import lines_of

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.common.log_limit import KEYS_MAX, PERIOD_SECONDS
from rocketpoll.broker.process.operator_log import TextFormatter
from rocketpoll.broker.processor.dispatcher import UNKNOWN_REQUEST, RequestDispatcher
from rocketpoll.broker.processor.request import RequestRejected, TopicNotSaved
from rocketpoll.broker.store.errors import StoreFailed


def handler(result):
    def handle(connection, request):
        if isinstance(result, Exception):
            raise result
        return result(request) if callable(result) else result

    return handle


def dispatched(result, code=10, flag=0, park=never_parked):
    dispatch = RequestDispatcher([{10: handler(result)}, {11: handler(None)}], 1_000, park)
    return dispatch(FakeConnection(), RemotingCommand(code, opaque=7, flag=flag))


def test_dispatcher_calls_the_handler_of_a_code():
    assert dispatched(lambda request: request.respond(0, "return_path")).remark == "return_path"
    assert dispatched(None) is None  # the response comes later
    families = [{10: handler(None)}, {11: handler(None)}]
    assert RequestDispatcher(families, 1_000, never_parked).codes == {10, 11}


def test_oversized_non_message_body_is_not_parsed():
    read = []
    dispatch = RequestDispatcher(
        [{34: handler(read.append), 10: handler(read.append)}], 1_000, never_parked
    )
    for code, size in ((34, 1_000), (34, 1_001), (10, 1_001)):
        answer = dispatch(FakeConnection(), RemotingCommand(code, body=bytes(size)))
        if (code, size) == (34, 1_001):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (
                answer.remark
                == "the body of request 34 has 1001 bytes, over 1000 (maxJsonBodyBytes)"
            )
    assert [(request.code, len(request.body)) for request in read] == [(34, 1_000), (10, 1_001)]


def test_request_code_with_two_handlers_is_refused():
    with pytest.raises(ValueError, match="code 10 has two"):
        RequestDispatcher([{10: handler(None)}, {10: handler(None)}], 1_000, never_parked)


RAISED = {
    "a refusal": (RequestRejected(ResponseCode.NO_PERMISSION, "no"), 16, "no"),
    "a header": (HeaderError("T", at="x", needed="y", found="z"), 1, "T"),
    "the store": (StoreFailed("the disk has failed"), 14, "the disk has failed"),
    "anything": (ZeroDivisionError("secret"), 1, "internal error; the broker's log has it"),
}


@pytest.mark.parametrize(("error", "code", "remark"), RAISED.values(), ids=RAISED)
def test_error_in_handler_is_answered_without_secrets(error, code, remark, caplog):
    answer = dispatched(error)
    assert (answer.code, answer.opaque) == (code, 7)
    assert answer.remark.startswith(remark)
    assert "secret" not in answer.remark
    assert ("secret" in caplog.text) is isinstance(error, ZeroDivisionError)


class Hindered:
    """Serves request 12, and refuses some of its requests."""

    def __init__(self, number, way):
        self.now = 0.0
        self._lacking, self._number, self._way = set(), number, way
        self._sent = []
        self._dispatch = RequestDispatcher(
            [{12: handler(self._handle)}], 1_000, never_parked, lambda: self.now
        )

    def lack(self, *wanted):
        self._lacking = set(wanted)

    def _answer(self, request):
        if request.ext_fields["wanted"] in self._lacking:
            raise OSError(self._number, os.strerror(self._number), "/store/index/1")
        return request.respond(0)

    def _steps(self, request):
        yield
        return self._answer(request)

    def _handle(self, request):
        if self._way == "at once":
            return self._answer(request)
        if self._way == "in steps":
            return self._steps(request)
        self._sent.append(
            self._dispatch.wrap_errors(FakeConnection(), request, self._steps(request))
        )
        return None

    def ask(self, wanted="a"):
        answered = self._dispatch(
            FakeConnection(), RemotingCommand(12, ext_fields={"wanted": wanted})
        )
        return finished(self._sent.pop() if self._sent else answered)


@pytest.fixture(params=["at once", "in steps", "beside"])
def hindered(request):
    return Hindered(errno.EMFILE, request.param)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("way", ["at once", "in steps", "beside"])
def test_disk_error_refuses_requests_and_logs_start_and_recovery(way, number, caplog):
    hindered = Hindered(number, way)
    hindered.lack("a")
    for _ in range(3):
        hindered.now += 60
        refused = hindered.ask()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert os.strerror(number) in refused.remark
        assert "/store/index/1" in refused.remark
    hindered.lack()
    hindered.now += 60
    assert [hindered.ask().code for _ in range(3)] == [0, 0, 0]
    begun, over = lines_of(caplog)
    assert begun.startswith("requests 12 are refused, retrying: ")
    assert over == "resolved: requests 12 are refused"


def test_recovery_is_logged_once_no_request_was_refused_for_a_while(hindered, caplog):
    hindered.lack("a")
    for _ in range(100):
        assert [hindered.ask(wanted).code for wanted in "ab"] == [2, 0]
        hindered.now += 9
    hindered.lack()
    assert hindered.ask().code == 0
    assert len(lines_of(caplog)) == 1
    hindered.now += 1
    assert hindered.ask().code == 0
    assert lines_of(caplog)[1:] == ["resolved: requests 12 are refused"]


@pytest.mark.parametrize("refusal", [None, "busy"])
def test_send_to_unsaved_topic_is_parked_or_refused(refusal):
    parked = []

    def park(_, request, topic):
        parked.append((request.opaque, topic))
        return refusal and request.respond(2, refusal)

    answer = dispatched(TopicNotSaved("New"), park=park)
    assert parked == [(7, "New")]
    assert (answer and answer.remark) == refusal
    assert dispatched(TopicNotSaved("New"), flag=2, park=park) is None


@pytest.mark.parametrize(
    "result", [lambda request: request.respond(0), *(each[0] for each in RAISED.values())]
)
def test_oneway_request_gets_no_answer(result):
    assert dispatched(result, flag=2) is None
    assert dispatched(None, code=12, flag=2) is None


def steps_to(result, count=3):
    """Return steps of a handler that ends after this number of them."""

    def handle(connection, request):
        for _ in range(count):
            yield
        return handler(result)(connection, request)

    return handle


@pytest.mark.parametrize(("error", "code", "remark"), RAISED.values(), ids=RAISED)
def test_error_in_steps_of_a_handler_is_answered(error, code, remark):
    dispatch = RequestDispatcher([{10: steps_to(error)}], 1_000, never_parked)
    answer = finished(dispatch(FakeConnection(), RemotingCommand(10, opaque=7)))
    assert (answer.code, answer.opaque) == (code, 7)
    assert answer.remark.startswith(remark)


def test_topic_recreated_during_steps_parks_the_request():
    parked = []
    dispatch = RequestDispatcher(
        [{10: steps_to(TopicNotSaved("New"))}], 1_000, lambda *parts: parked.append(parts[-1])
    )
    assert finished(dispatch(FakeConnection(), RemotingCommand(10))) is None
    assert parked == ["New"]


def test_dispatcher_answers_with_the_last_of_many_steps_unless_oneway():
    dispatch = RequestDispatcher(
        [{10: steps_to(lambda request: request.respond(0, "here"))}], 1_000, never_parked
    )
    work = dispatch(FakeConnection(), RemotingCommand(10, opaque=7))
    assert [next(work) for _ in range(3)] == [None] * 3
    assert finished(work).remark == "here"
    assert finished(dispatch(FakeConnection(), RemotingCommand(10, flag=2))) is None


def test_abandoned_handler_steps_are_closed():
    ended = []

    def handle(connection, request):
        try:
            yield
            yield
        finally:
            ended.append(request.opaque)

    work = RequestDispatcher([{10: handle}], 1_000, never_parked)(
        FakeConnection(), RemotingCommand(10, opaque=7)
    )
    next(work)
    work.close()
    assert ended == [7]


# ---- counted refusals


def refusals(*results, code=10, park=never_parked):
    """Return the counts of refusals after each of these handler results."""
    todo = iter(results)

    def one_after_another(connection, request):
        return handler(next(todo))(connection, request)

    dispatch = RequestDispatcher([{10: one_after_another}], 1_000, park)
    for _ in results:
        answer = dispatch(FakeConnection(), RemotingCommand(code))
        if answer is not None and not isinstance(answer, RemotingCommand):
            finished(answer)
    return dict(dispatch.refused)


def test_refusals_are_counted_by_request_and_answer_however_they_come_about():
    def steps(_):
        yield None
        raise RequestRejected(ResponseCode.SYSTEM_BUSY, "later")

    assert refusals(
        RequestRejected(ResponseCode.SYSTEM_BUSY, "now"),
        steps,
        StoreFailed("gone"),
        lambda request: request.respond(ResponseCode.SYSTEM_BUSY, "said"),
    ) == {(10, ResponseCode.SYSTEM_BUSY): 3, (10, ResponseCode.SERVICE_NOT_AVAILABLE): 1}


def test_send_refused_without_room_to_wait_for_its_topic_is_counted():
    def full(_, request, __):
        return request.respond(ResponseCode.SYSTEM_BUSY, "too many wait")

    assert refusals(TopicNotSaved("T"), park=full) == {(10, ResponseCode.SYSTEM_BUSY): 1}
    assert refusals(TopicNotSaved("T"), park=lambda *_: None) == {}


@pytest.mark.parametrize("code", [0, 19, 20, 21, 22])
def test_pull_without_result_is_not_counted_as_refusal(code):
    assert refusals(lambda request: request.respond(code), None) == {}


def test_unknown_requests_are_counted_as_one_kind():
    for code in (12, 13):
        counted = refusals(None, code=code)
        assert counted == {(UNKNOWN_REQUEST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED): 1}


def test_refusals_of_one_kind_are_logged_once_a_minute_with_their_number(caplog):
    clock = Clock()
    dispatch = RequestDispatcher(
        [{10: handler(RequestRejected(ResponseCode.SYSTEM_ERROR, "why"))}],
        1_000,
        never_parked,
        clock,
    )
    caplog.set_level("INFO")
    connection = FakeConnection()
    for _ in range(5):
        dispatch(connection, RemotingCommand(10))
    clock.now += PERIOD_SECONDS
    dispatch(connection, RemotingCommand(10))
    first, again = lines_of(caplog)
    assert first.endswith("refused with SYSTEM_ERROR: why")
    assert again == f"{first} (4 more of this kind since the last line)"


def test_refusal_with_a_long_remark_takes_two_lines_of_at_most_200_columns(caplog):
    remark = "topic payments.settlement.international does not exist; " * 4
    dispatch = RequestDispatcher(
        [{10: handler(RequestRejected(ResponseCode.SYSTEM_ERROR, remark))}],
        1_000,
        never_parked,
        Clock(),
    )
    caplog.set_level("INFO")
    dispatch(FakeConnection(), RemotingCommand(10))
    refusal, why = lines_of(caplog)
    assert refusal.endswith("refused with SYSTEM_ERROR")
    assert remark[:100] in why
    assert all(len(TextFormatter().format(each)) <= 200 for each in caplog.records)


def test_repeated_refusals_of_a_client_do_not_fill_the_log(caplog):
    clock = Clock()
    dispatch = RequestDispatcher([], 1_000, never_parked, clock)
    caplog.set_level("INFO")
    for code in range(1_000, 1_000 + 10 * KEYS_MAX):
        dispatch(FakeConnection(), RemotingCommand(code))
    assert len(lines_of(caplog)) == KEYS_MAX
    assert dispatch.refused[UNKNOWN_REQUEST, 3] == 10 * KEYS_MAX
