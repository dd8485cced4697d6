"""Every kind of request of the gaps' benchmark is answered with success; how long that takes is no matter."""

from __future__ import annotations

from benchmarks.gaps import QUICK, gaps
from benchmarks.gaps.measured import Client, MeasuredBroker


def test_every_kind_comes_to_an_end(tmp_path, monkeypatch):
    clients = []
    made = Client.__init__
    monkeypatch.setattr(Client, "__init__", lambda self, broker: clients.append(self) or made(self, broker))
    broker = MeasuredBroker(tmp_path)
    try:
        found = dict(gaps(broker, QUICK))
    finally:
        broker.shutdown()
    assert len(found) == 22
    assert all(0 <= gap.cpu_ms <= gap.whole_ms + 50 for gap in found.values())
    codes = {code for client in clients for code in client.codes}
    assert codes <= {0, 20}  # success; nothing matched
