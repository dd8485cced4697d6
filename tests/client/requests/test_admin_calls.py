"""Requests of operators that `Admin` does not cover."""


def test_broker_runtime_info_and_config_are_read(api, running_broker):
    address = running_broker.address
    assert api.admin.runtime_info(address)["brokerVersionDesc"].startswith("V4_9")
    assert api.admin.broker_config(address)["brokerName"] == "broker-a"
