"""Clients whose ``__del__`` runs at interpreter exit do not block.

No other thread of the program runs any more, so code must not wait for one.
"""

import pytest
from support.programs.python_programs import last_line_of

PATIENCE_S = 60
PROGRAM = """
import sys
from rocketpoll import Admin, ClientInstance, LitePullConsumer, Message, Producer, PushConsumer

address, topic, made = sys.argv[1:]


class Owner:
    def __init__(self):
        self.client = {
            "producer": lambda: Producer("P", address),
            "lite consumer": lambda: LitePullConsumer("L", address),
            "push consumer": lambda: PushConsumer("C", address, listener=lambda *_: None),
            "instance": lambda: ClientInstance(address),
            "admin": lambda: Admin(address),
        }[made]()
        self.client.__enter__()
        if made == "producer":
            self.client.send(Message(topic, b"first"))
        elif "consumer" in made:
            self.client.subscribe(topic)

    def __del__(self, write=sys.stdout.write, flush=sys.stdout.flush):
        said = []
        message = Message(topic, b"last")
        for send in (
            lambda: self.client.send(message, timeout_ms=500),
            lambda: self.client.send_async(message, timeout_ms=500).result(),
            lambda: self.client.send_one_way(message),
            lambda: self.client.send_batch([message], timeout_ms=500),
        ) if made == "producer" else ():
            try:
                send()
            except Exception as error:
                said.append(type(error).__name__)
        try:
            self.client.shutdown() if hasattr(self.client, "shutdown") else self.client.close()
        finally:
            write(f'"it has come to its end {" ".join(said)}"\\n')
            flush()


sys.modules["kept until the very end"] = Owner()
"""


@pytest.mark.parametrize("made", ["producer", "lite consumer", "push consumer", "instance"])
def test_client_shut_down_by_the_last_del_lets_the_program_exit(cluster, tmp_path, made):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    line = last_line_of(
        str(program), cluster.name_server, cluster.topic(), made, seconds=PATIENCE_S
    )
    said = ["ClientShutDown"] * 4 if made == "producer" else []
    assert line.split() == ["it", "has", "come", "to", "its", "end", *said]
