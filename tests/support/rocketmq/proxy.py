"""RocketMQ's proxy in front of a cluster: its remoting port for classic Java clients, and its gRPC
port.

The proxy answers routes with its own address, so that all requests of a client go through it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from support.rocketmq.java_programs import java_program
from support.rocketmq.real_broker import (
    CLUSTER,
    POLL_SECONDS,
    READY_SECONDS_MAX,
    Process,
    free_port,
    is_listening,
)


class Proxy:
    """A proxy of one version in cluster mode.

    The constructor returns when the proxy is listening.
    """

    def __init__(self, version: str, home: Path, name_server: str, **more: object) -> None:
        home.mkdir()
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        grpc_port = free_port()
        self.grpc_address = f"127.0.0.1:{grpc_port}"
        configuration = home / "rmq-proxy.json"
        configuration.write_text(
            json.dumps(
                {
                    "proxyMode": "CLUSTER",
                    "rocketMQClusterName": CLUSTER,
                    "namesrvAddr": name_server,
                    "localServeAddr": "127.0.0.1",
                    "remotingAccessAddr": "127.0.0.1",
                    "remotingListenPort": self._port,
                    "grpcServerPort": grpc_port,
                    "metricsExporterType": "DISABLE",
                    "transactionHeartbeatPeriodSecond": 1,
                    **more,
                }
            ),
            encoding="utf-8",
        )
        self._process = Process(
            home,
            java_program("proxy", version),
            "org.apache.rocketmq.proxy.ProxyStartup",
            "512m",
            ["-pc", str(configuration)],
            [f"-Drmq.proxy.home={home}"],
        )
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.close()
            raise

    def _wait_until_it_listens(self) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not is_listening(self._port):
            self._process.check_is_running()
            assert time.monotonic() < deadline, "the proxy does not listen"
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        self._process.kill()
