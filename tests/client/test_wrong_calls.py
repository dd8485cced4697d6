"""Unknown keyword arguments: the error names the user's class and the closest parameter."""

import inspect

import pytest
from support.clients.asyncio_tests import told_in_a_loop

from rocketpoll import (
    Admin,
    ClientInstance,
    Consumer,
    Credentials,
    LitePullSettings,
    Message,
    Producer,
    PullLimits,
    PushConsumer,
    PushSettings,
    SchemaRegistry,
    SendRules,
    SimpleConsumer,
    TlsSettings,
    aio,
    read_table,
)
from rocketpoll.errors import RouteNotFound

NOBODY = "127.0.0.1:9"
WITHOUT_ARGUMENTS = {"start", "close", "shutdown"}  # they take no arguments


def methods_of(kind):
    return [
        name
        for name, found in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]


THREADED = [
    (kind, name)
    for kind in (Consumer, PushConsumer)
    for name in methods_of(kind)
    if name not in WITHOUT_ARGUMENTS
]
AWAITED = [
    (kind, name)
    for kind in (aio.Consumer, aio.SimpleConsumer, aio.Admin)
    for name in methods_of(kind)
    if inspect.iscoroutinefunction(getattr(kind, name)) and name not in WITHOUT_ARGUMENTS
]


def made(kind):
    if kind is PushConsumer:
        return kind("g", NOBODY, listener=lambda *_: None)
    return kind(NOBODY) if kind is aio.Admin else kind("g", NOBODY)


@pytest.mark.parametrize(("kind", "name"), THREADED)
def test_unknown_keyword_error_names_the_users_class(kind, name):
    why = rf"^{kind.__name__}\.{name}\(\) got an unexpected keyword argument 'unheard_of'$"
    with pytest.raises(TypeError, match=why):
        getattr(made(kind), name)(unheard_of=1)


@pytest.mark.parametrize(("kind", "name"), AWAITED)
@told_in_a_loop
async def test_unknown_keyword_error_of_an_aio_call_names_the_users_class(kind, name):
    why = rf"^{kind.__name__}\.{name}\(\) got an unexpected keyword argument 'unheard_of'$"
    user = made(kind)
    with pytest.raises(TypeError, match=why):
        await getattr(user, name)(unheard_of=1)
    await user.close()


def test_misspelled_argument_suggests_the_nearest_name():
    why = r"^Consumer\.poll\(\) got .* 'timeout': did you mean timeout_ms\?"
    with pytest.raises(TypeError, match=why) as raised:
        Consumer("g", NOBODY).poll(timeout=1)
    assert raised.value.__suppress_context__


@told_in_a_loop
async def test_misspelled_argument_of_an_aio_call_suggests_the_nearest_name():
    consumer = aio.Consumer("g", NOBODY)
    with pytest.raises(TypeError, match=r"^Consumer\.seek\(\) got .*: did you mean offset\?"):
        await consumer.seek(None, ofset=1)
    await consumer.close()


def test_type_error_raised_within_a_method_is_passed_on_unchanged():
    with pytest.raises(TypeError, match=r"^topic: needed a string"):
        Consumer("g", NOBODY).subscribe(5)


def test_python_reports_missing_arguments():
    with pytest.raises(TypeError, match=r"subscribe\(\) missing .*'topic'"):
        Consumer("g", NOBODY).subscribe()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Producer("p", bootstrap_servers=NOBODY), "Producer.* did you mean namesrv"),
        (lambda: Producer("p", NOBODY, value_serializer="json"), "did you mean serializer"),
        (lambda: Producer("p", NOBODY, retry=2), "did you mean retries"),
        (lambda: Consumer("g", NOBODY, auto_offset_reset="earliest"), "Consumer.* mean start"),
        (lambda: Consumer("g", NOBODY, enable_auto_commit=False), "mean settings=LitePullSettings"),
        (lambda: PushConsumer("g", NOBODY, listner=print), "PushConsumer.* did you mean listener"),
        (lambda: ClientInstance(name_servers=NOBODY), "ClientInstance.* did you mean namesrv"),
        (lambda: Admin(bootstrap_servers=NOBODY), "Admin.* did you mean namesrv"),
        (lambda: aio.Producer("p", bootstrap_servers=NOBODY), "did you mean namesrv"),
        (lambda: aio.Consumer("g", clients=None), "did you mean client"),
        (lambda: SimpleConsumer("g", name_servers=NOBODY), "SimpleConsumer.* did you mean namesrv"),
        (lambda: aio.SimpleConsumer("g", clients=None), "did you mean client"),
        (lambda: aio.SimpleConsumer("g", NOBODY, from_first=True), 'did you mean start="earliest"'),
        (lambda: SimpleConsumer("g", NOBODY, from_first=True), 'did you mean start="earliest"'),
        (lambda: Consumer("g", NOBODY, consume_from_where="earliest"), 'mean start="earliest"'),
    ],
)
def test_constructor_with_an_unknown_argument_suggests_the_right_one(make, says):
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.parametrize("kind", [SimpleConsumer, aio.SimpleConsumer])
def test_simple_consumer_refuses_a_time_as_start(kind):
    with pytest.raises(ValueError, match=r'start: needed "earliest" or "latest".*, found .-1h'):
        kind("g", NOBODY, start="-1h")
    with pytest.raises(TypeError, match="start: needed a string"):
        kind("g", NOBODY, start=True)


def test_poll_without_subscription_logs_once_why_it_returns_nothing(running_broker, caplog):
    with Consumer("nothing", running_broker.address) as consumer:
        assert consumer.poll(0) == consumer.poll(0) == []
    assert caplog.text.count("Call subscribe or assign") == 1


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: LitePullSettings(auto_offset_reset="earliest"),
            r'consume_from_where \(or start="earliest" of the consumer\)',
        ),
        (lambda: LitePullSettings(enable_auto_commit=True), "auto_commit"),
        (lambda: PushSettings(consume_thread_maxx=1), "consume_thread_max"),
        (lambda: Admin("127.0.0.1:1").create_topic("T", queue_nums=4), "queues"),
        (lambda: Admin("127.0.0.1:1").lag("g", tpic="T"), "topic"),
        (lambda: Admin("127.0.0.1:1").delete_topic("T", missing=True), "missing_ok"),
        (lambda: Message("orders", b"x", kyes="1"), "keys"),
        (lambda: Message("orders", b"x", delay_levle=1), "delay_level"),
        (lambda: Producer("g", NOBODY).send(Message("T", b"x"), timeout=1), "timeout_ms"),
        (lambda: TlsSettings(ca="x.pem", server_nam="broker"), "ca_file|did you mean server_name"),
        # Credentials has no such argument
        (lambda: Credentials("a", "b", secret_token="c"), "security_token"),
        (lambda: SendRules("shop", compress_levle=1), "compress_level"),
        (lambda: PullLimits(consume_max_spna=1), "consume_max_span"),
        (lambda: SchemaRegistry("http://localhost", timeout=1), "timeout_ms"),
        (lambda: read_table("T", NOBODY, column=["body"]), "columns"),
    ],
)
def test_unknown_argument_of_settings_and_of_topics_suggests_the_right_one(call, hint):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument .* did you mean {hint}\?"):
        call()


@told_in_a_loop
async def test_unknown_argument_of_an_aio_send_suggests_the_right_one():
    producer = aio.Producer("g", NOBODY)
    assert inspect.iscoroutinefunction(producer.send)
    with pytest.raises(TypeError, match=r"^Producer\.send\(\) got .*: did you mean timeout_ms\?"):
        await producer.send(Message("T", b"x"), timeout=1)
    await producer.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda: Consumer(NOBODY, "g"),
        lambda: Producer(NOBODY, "g"),
        lambda: PushConsumer(NOBODY, "g", listener=lambda *_: None),
        lambda: SimpleConsumer(NOBODY, "g"),
        lambda: aio.Consumer(NOBODY, "g"),
    ],
)
def test_address_in_place_of_a_name_is_refused_with_advice(call):
    with pytest.raises(ValueError, match=r"found '127\.0\.0\.1:9'\. It is an address: pass the "):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: Consumer("billing", "orders"),
        lambda: Producer("shop", "orders"),
        lambda: Admin("localhost"),
        lambda: read_table(NOBODY, "orders"),
        lambda: aio.Consumer("billing", "orders"),
    ],
)
def test_name_in_place_of_an_address_is_refused_by_the_constructor(call):
    with pytest.raises(
        ValueError, match=r"^namesrv: needed host:port, .*found '(orders|localhost)'"
    ):
        call()


def test_error_for_a_group_in_place_of_a_topic_says_that_it_is_a_group(running_broker):
    with Admin(running_broker.address) as admin:
        admin.create_topic("bills")
        admin.create_topic("%RETRY%billing")  # as each consumer of a group does
        with pytest.raises(RouteNotFound, match="billing is a consumer group, not a topic"):
            admin.read_table("billing")
        with pytest.raises(RouteNotFound, match=r"did you mean bills\?"):
            admin.read_table("bilsl")


def test_iterating_over_a_consumer_names_poll():
    with pytest.raises(TypeError, match=r"not iterable: write for message in consumer\.poll"):
        list(Consumer("g", "127.0.0.1:1"))
