"""ClusterLookups: read-only lookups of brokers, routes, topic settings and group members.

If one broker does not answer, a lookup fails: half an answer would look complete. `broker_info`
asks one broker alone, to find out which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmq_spark.client.admin.reads.message_lookups import MessageLookups
from rmq_spark.client.arguments import check_name, check_text
from rmq_spark.client.errors import BrokerNotFound, ClientError, RouteNotFound
from rmq_spark.client.instance.routes import MASTER_ID
from rmq_spark.errors import sanitize
from rmq_spark.wire.bodies.client_info import Connection
from rmq_spark.wire.bodies.cluster_lists import ClusterInfo
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.routes import TopicRouteData
from rmq_spark.wire.message_queue import MessageQueue

_CLUSTER: Final = "DefaultCluster"


class QueueReport(NamedTuple):
    """A group member's report on one of its queues.

    Attributes:
        client_id: Client id of the member.
        messages: Number of messages of the queue that it has pulled and not finished.
        tried_ms: Milliseconds since the epoch at which it last began or finished a message of the
            queue, or began the queue; None if it does not say.
    """

    client_id: str
    messages: int
    tried_ms: int | None


class ClusterLookups(MessageLookups):
    """Read-only lookups of brokers, routes, topic settings and group members."""

    # ---- the cluster

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, with their addresses, and the clusters that they belong to."""
        return self.instance.name_servers.admin.cluster_info()

    def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic, as a name server knows them."""
        topic = check_text("topic", topic, "orders")
        return self.instance.name_servers.route(topic)

    def masters(self, cluster: str | None = None) -> Mapping[str, str]:
        """Return the addresses of all masters, or of those of a ``cluster``, by broker name."""
        cluster = check_name("cluster", cluster, _CLUSTER)
        info = self.cluster_info()
        names = (
            info.broker_addr_table if cluster is None else info.cluster_addr_table.get(cluster, ())
        )
        found = {
            name: info.broker_addr_table[name].broker_addrs[MASTER_ID]
            for name in sorted(names)
            if name in info.broker_addr_table
            and MASTER_ID in info.broker_addr_table[name].broker_addrs
        }
        if not found:
            whose = "the cluster" if cluster is None else f"cluster {sanitize(cluster)}"
            raise BrokerNotFound("", f"{whose} has no master that the name servers know")
        return found

    def runtime_info(self) -> Mapping[str, Mapping[str, str]]:
        """Return what each master reports about itself, by broker name: version, rates, disk."""
        return {
            name: self._api.admin.runtime_info(address) for name, address in self.masters().items()
        }

    def broker_info(self, address: str) -> Mapping[str, str]:
        """Return what the broker at an ``address``, master or slave, reports about itself."""
        address = check_text("address", address, "10.0.0.1:10911")
        return self._api.admin.runtime_info(address)

    # ---- topics

    def all_topic_configs(self) -> Mapping[str, Mapping[str, TopicConfig]]:
        """Return the settings of all topics of each master, by broker name, then by topic."""
        return {
            name: self._api.admin.topic_configs(address) for name, address in self.masters().items()
        }

    def topic_configs(self, topic: str) -> Mapping[str, TopicConfig]:
        """Return the settings of a topic on each master that has it, by broker name."""
        topic = check_text("topic", topic, "orders")
        found = {
            name: self._api.admin.topic_configs(address).get(topic)
            for name, address in self._brokers_of(topic)
        }
        known = {name: config for name, config in found.items() if config is not None}
        if not known:
            raise RouteNotFound(topic)
        return known

    # ---- groups

    def members(self, group: str) -> tuple[Connection, ...]:
        """Return the online members of a consumer ``group``, by client id; empty if offline."""
        group = check_text("group", group, "billing")
        found: dict[str, Connection] = {}
        for address in self.masters().values():
            found.update(
                {each.client_id: each for each in self._api.admin.online_members(address, group)}
            )
        return tuple(found[client_id] for client_id in sorted(found))

    def queue_owners(self, group: str) -> Mapping[MessageQueue, str]:
        """Return the client id of each queue's owner in a ``group``, as the members report it.

        Queues of members that do not answer, because they are busy or older clients, are omitted.
        """
        return {queue: held.client_id for queue, held in self.queue_reports(group).items()}

    def queue_reports(self, group: str) -> Mapping[MessageQueue, QueueReport]:
        """Return the reports of a ``group``'s online members on each of their queues.

        A listener that fails retries the same message again and again, so that the time of its
        queue advances. If a listener hangs, that time stands still while messages wait.

        Queues of members that do not answer, because they are busy or older clients, are omitted.
        """
        group = check_text("group", group, "billing")
        reports: dict[MessageQueue, QueueReport] = {}
        asked = set()
        for address in self.masters().values():
            for member in self._api.admin.online_members(address, group):
                client_id = member.client_id
                if client_id in asked:
                    continue
                try:
                    info = self._api.admin.consumer_running_info(address, group, client_id)
                except ClientError:  # another broker may have a better way to it
                    continue
                asked.add(client_id)
                for queue, held in info.mq_table.items():
                    waiting = held.cached_msg_count + held.transaction_msg_count
                    at_ms = held.last_consume_timestamp or None
                    reports[queue] = QueueReport(client_id, waiting, at_ms)
        return reports
