"""Requests of operators, one method each; typed headers in, values out.

    AdminApi         to a broker, whose address comes first
    StagingApi       about staged batches, to one of rocketpoll's brokers
    NameServerApi    to name servers: a lookup asks any of them, a change goes to all
    AccessApi        about users and their access lists, to a broker

`name_servers` holds the addresses of name servers, and chooses which one to ask first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    ClientError,
    ConnectionClosed,
    ConsumerNotOnline,
    NoNameServer,
    NoPermission,
    NotSupported,
    TopicNotFound,
)
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.client.transport.remoting_client import (
    TypedRequests,
    build_request,
    check_response,
    response_body,
    response_header,
)
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TimerMetricsSerializeWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.bodies.operators import (
    ACL_LIST,
    USER_LIST,
    AclInfo,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    KVTable,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    ResetOffsetBody,
    TopicList,
    TopicStatsTable,
    UserInfo,
)
from rmq_spark.wire.bodies.staged_batches import (
    AbortBatchRequestBody,
    CommitBatchRequestBody,
    CommittedBatch,
    SinksBody,
    SinkState,
    StagedAttempt,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    BatchRequestHeader,
    ConsumerGroupRequestHeader,
    ForgetSinkRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
)
from rmq_spark.wire.headers.operators import (
    AclRequestHeader,
    BrokerNameRequestHeader,
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DeleteAclRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicsByClusterRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ResetOffsetRequestHeader,
    TopicRequestHeader,
    UserRequestHeader,
    ViewMessageRequestHeader,
)
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    from rmq_spark.client.transport.remoting_client import RemotingClient

_Found = TypeVar("_Found")

RELAY_TIMEOUT_MS: Final = 15_000
"""Timeout of requests that the broker relays to a consumer; the broker itself waits ten seconds."""

_FOUND_OR_NOT_FOUND: Final = frozenset(
    {ResponseCode.SUCCESS.value, ResponseCode.QUERY_NOT_FOUND.value}
)


class AdminApi:
    """An operator's requests to a broker, one method each; the address comes first."""

    def __init__(self, requests: TypedRequests, connections: RemotingClient) -> None:
        self.requests = requests
        self._connections = connections

    # ---- messages

    def queue_entries(
        self, address: str, queue: MessageQueue, start: int, count: int
    ) -> QueryConsumeQueueResponseBody:
        """Return entries of a consume queue from an offset on, including blank ones."""
        header = QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, start, count)
        code = RequestCode.QUERY_CONSUME_QUEUE
        return self.requests.body(QueryConsumeQueueResponseBody, address, code, header)

    def view_message(self, address: str, commit_log_offset: int) -> Buffer:
        """Return the record at a physical offset of the commit log."""
        header = ViewMessageRequestHeader(commit_log_offset)
        return self.requests.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header).body

    def query_message(self, address: str, header: QueryMessageRequestHeader) -> Buffer:
        """Return the records with a key, back to back; empty if there are none."""
        return self.requests.call(
            address, RequestCode.QUERY_MESSAGE, header, accepted=_FOUND_OR_NOT_FOUND
        ).body

    # ---- sinks

    def sinks(self, address: str) -> Mapping[str, SinkState]:
        """Return the last batch of each sink at one of our brokers, by the sink's name."""
        return self.requests.body(SinksBody, address, RequestCode.ALL_SINKS).sinks

    def forget_sink(self, address: str, sink: str) -> bool:
        """Remove a sink from one of our brokers; return whether the broker knew it."""
        response = self.requests.call(
            address,
            RequestCode.FORGET_SINK,
            ForgetSinkRequestHeader(sink),
            accepted=_FOUND_OR_NOT_FOUND,
        )
        return response.code == ResponseCode.SUCCESS

    # ---- topics

    def create_topic(self, address: str, config: TopicConfig) -> None:
        """Create a topic on a broker, or change it."""
        code, header = RequestCode.UPDATE_AND_CREATE_TOPIC, _create_topic_header(config)
        self.requests.call(address, code, header)

    def create_topic_async(self, address: str, config: TopicConfig) -> Future[None]:
        """Create a topic on a broker, or change it; the future fails if the broker refuses."""
        code = RequestCode.UPDATE_AND_CREATE_TOPIC

        def interpret(response: RemotingCommand) -> None:
            check_response(address, code, response)

        command = build_request(code, _create_topic_header(config))
        timeout_ms = self.requests.timeout_ms
        return self._connections.request_async(address, command, timeout_ms, interpret)

    def create_topic_list(self, address: str, configs: Iterable[TopicConfig]) -> None:
        """Create or change topics of a broker by one request, which RocketMQ has from 5.3 on."""
        body = CreateTopicListRequestBody(
            topic_config_list=tuple(
                replace(config, attributes=_signed(config.attributes)) for config in configs
            )
        )
        self.requests.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)

    def delete_topic(self, address: str, topic: str) -> None:
        """Delete a topic from a broker, with its messages."""
        self.requests.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic))

    def topic_configs(self, address: str) -> Mapping[str, TopicConfig]:
        """Return the settings of all topics of a broker, by name."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return self.requests.body(TopicConfigSerializeWrapper, address, code).topic_config_table

    def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """Return the settings of a topic of a broker; None if it has no such topic.

        RocketMQ 4.9 does not know this request; there, the settings of all topics are read.
        """
        header = TopicRequestHeader(topic)
        try:
            return self.requests.body(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, header)
        except TopicNotFound:
            return None
        except NotSupported:
            return self.topic_configs(address).get(topic)

    def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        """Return the first and end offsets of a topic's queues on a broker."""
        header = TopicRequestHeader(topic)
        return self.requests.body(
            TopicStatsTable, address, RequestCode.GET_TOPIC_STATS_INFO, header
        )

    def timer_metrics(self, address: str) -> Mapping[str, int]:
        """Return the number of messages of each topic that wait for their time of delivery."""
        body = self.requests.body(
            TimerMetricsSerializeWrapper, address, RequestCode.GET_TIMER_METRICS
        )
        return {topic: metric.count for topic, metric in body.timing_count.items()}

    def groups_of_topic(self, address: str, topic: str) -> frozenset[str]:
        """Return the names of the groups that consume a topic, or have consumed it."""
        header, code = TopicRequestHeader(topic), RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        return self.requests.body(GroupList, address, code, header).group_list

    # ---- groups

    def create_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create a consumer group on a broker, or change it."""
        self.requests.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)

    def delete_group(self, address: str, group: str, *, with_offsets: bool = False) -> None:
        """Delete a consumer group, and its offsets if asked for."""
        header = DeleteSubscriptionGroupRequestHeader(group, with_offsets, with_offsets)
        self.requests.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    def group_configs(self, address: str) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the settings of all consumer groups of a broker, by name."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return self.requests.body(SubscriptionGroupWrapper, address, code).subscription_group_table

    def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress, in one topic or in all that it has offsets for."""
        header = GetConsumeStatsRequestHeader(group, topic)
        return self.requests.body(ConsumeStats, address, RequestCode.GET_CONSUME_STATS, header)

    def all_offsets(self, address: str) -> Mapping[str, Mapping[int, int]]:
        """Return the offsets of all groups, by ``topic@group`` and queue.

        RocketMQ refuses with SYSTEM_ERROR if no group has offsets.
        """
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return self.requests.body(ConsumerOffsetSerializeWrapper, address, code).offset_table

    def reset_offset(
        self, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """Reset an online group to a time, or, on 5.x and rocketpoll, to an offset of one queue.

        Raises:
            ConsumerNotOnline: No member is online; its offsets can be stored directly.
        """
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return self.requests.body(ResetOffsetBody, address, code, header).offset_table

    def clone_group_offset(self, address: str, header: CloneGroupOffsetRequestHeader) -> None:
        """Give one group the offsets of another."""
        self.requests.call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    # ---- clients

    def consumer_connection(self, address: str, group: str) -> ConsumerConnection:
        """Return the online members of a consumer group."""
        header, code = ConsumerGroupRequestHeader(group), RequestCode.GET_CONSUMER_CONNECTION_LIST
        return self.requests.body(ConsumerConnection, address, code, header)

    def online_members(self, address: str, group: str) -> tuple[Connection, ...]:
        """Return the online members of a consumer group, as one broker knows them; may be empty."""
        try:
            return tuple(self.consumer_connection(address, group).connection_set)
        except ConsumerNotOnline:
            return ()

    def producers(self, address: str) -> ProducerTableInfo:
        """Return all producers of a broker, by group."""
        return self.requests.body(ProducerTableInfo, address, RequestCode.GET_ALL_PRODUCER_INFO)

    def consumer_running_info(
        self, address: str, group: str, client_id: str
    ) -> ConsumerRunningInfo:
        """Return a consumer's report on itself, which the broker requests from it."""
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        header = GetConsumerRunningInfoRequestHeader(group, client_id)
        return self.requests.body(ConsumerRunningInfo, address, code, header, RELAY_TIMEOUT_MS)

    # ---- the broker

    def runtime_info(self, address: str) -> Mapping[str, str]:
        """Return a broker's report on itself."""
        return self.requests.body(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO).table

    def broker_config(self, address: str) -> Mapping[str, str]:
        """Return a broker's settings."""
        response = self.requests.call(address, RequestCode.GET_BROKER_CONFIG)
        response_header(address, RequestCode.GET_BROKER_CONFIG, response)
        lines = bytes(response.body).decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, _, value in pairs}


def _create_topic_header(config: TopicConfig) -> CreateTopicRequestHeader:
    attributes = ",".join(
        f"{name}={value}" for name, value in (_signed(config.attributes) or {}).items()
    )
    return CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic="TBW102",
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type.name,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes or None,
    )


def _signed(attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return attributes with a plus before each name, which makes a broker set them."""
    return {f"+{name}": value for name, value in attributes.items()} if attributes else None


class StagingApi:
    """The requests for staged batches, one method each; the broker's address comes first."""

    def __init__(self, connections: RemotingClient, timeout_ms: int) -> None:
        self._connections = connections
        self._requests = TypedRequests(connections.request, timeout_ms)

    def stage_chunk(
        self,
        address: str,
        header: StageChunkRequestHeader,
        sized_records: Buffer,
        timeout_ms: int | None = None,
    ) -> Future[bool]:
        """Stage encoded records, each preceded by its size.

        The future's result is True if the batch was already committed, so that nothing was staged.
        """
        code = RequestCode.STAGE_CHUNK
        command = build_request(code, header, sized_records)

        def interpret(response: RemotingCommand) -> bool:
            check_response(address, code, response)
            is_committed: bool = response_header(address, code, response).is_committed
            return is_committed

        timeout_ms = self._requests.timeout_ms if timeout_ms is None else timeout_ms
        return self._connections.request_async(address, command, timeout_ms, interpret)

    def commit_batch(
        self,
        address: str,
        batch: BatchRequestHeader,
        attempts: Sequence[StagedAttempt],
        timeout_ms: int | None = None,
    ) -> CommittedBatch:
        """Make all rows of these attempts visible; return the last committed batch.

        A batch that was committed before is returned as it was committed then. The broker
        continues even if the caller stops waiting: repeating the request returns the outcome.
        """
        code, body = RequestCode.COMMIT_BATCH, CommitBatchRequestBody(attempts=tuple(attempts))
        response = self._requests.call(address, code, batch, body, timeout_ms=timeout_ms)
        return response_body(address, CommittedBatch, response)

    def abort_batch(
        self,
        address: str,
        batch: BatchRequestHeader,
        attempts: Sequence[str],
        timeout_ms: int | None = None,
    ) -> None:
        """Discard what these attempts have staged, unless the batch is committed."""
        code, body = RequestCode.ABORT_BATCH, AbortBatchRequestBody(attempts=tuple(attempts))
        self._requests.call(address, code, batch, body, timeout_ms=timeout_ms)

    def last_batch(self, address: str, sink: str) -> CommittedBatch | None:
        """Return the last batch that a sink has committed, or None."""
        code, header = RequestCode.LAST_BATCH, LastBatchRequestHeader(sink)
        response = self._requests.call(address, code, header, accepted=_FOUND_OR_NOT_FOUND)
        if response.code != ResponseCode.SUCCESS:
            return None
        return response_body(address, CommittedBatch, response)


# ---- NameServerApi: an operator's requests to name servers.


class NameServerAccess(Protocol):
    """The part of `NameServers` that the requests of operators need."""

    addresses: tuple[str, ...]
    requests: TypedRequests
    address_overrides: AddressOverrides

    def ask_any(self, call: Callable[[str], _Found]) -> _Found:
        """Return the response of the first name server that answers."""


class NameServerApi:
    """An operator's requests to name servers, one method each."""

    def __init__(self, servers: NameServerAccess) -> None:
        self._servers = servers
        self._requests = servers.requests

    def _ask_with_retry(self, call: Callable[[str], _Found]) -> _Found:
        """Return the response of any name server; if it closes the connection, retry.

        When a name server restarts, its end of an idle connection is closed, which the client may
        notice only after it has sent the next request. An operator's request has time for a second
        attempt; a send that looks up its route does not.
        """

        def call_twice(address: str) -> _Found:
            try:
                return call(address)
            except ConnectionClosed:
                return call(address)

        return self._servers.ask_any(call_twice)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, by name and by cluster."""
        found = self._ask_with_retry(
            lambda address: self._requests.body(
                ClusterInfo, address, RequestCode.GET_BROKER_CLUSTER_INFO
            )
        )
        return self._servers.address_overrides.apply_to_cluster(found)

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """Return all topics, or those of a cluster."""
        if cluster is None:
            code, header = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None
        else:
            code, header = (
                RequestCode.GET_TOPICS_BY_CLUSTER,
                GetTopicsByClusterRequestHeader(cluster),
            )
        return self._ask_with_retry(
            lambda address: self._requests.body(TopicList, address, code, header)
        ).topic_list

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic from the routes of all name servers."""
        header = DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        self._ask_all(
            lambda address: self._requests.call(
                address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header
            )
        )

    def wipe_write_permission(self, broker_name: str) -> int:
        """Forbid writing to all topics of a broker; return the number of topics changed."""
        header, code = BrokerNameRequestHeader(broker_name), RequestCode.WIPE_WRITE_PERM_OF_BROKER
        counts: list[int] = self._ask_all(
            lambda address: self._requests.header(address, code, header).wipe_topic_count
        )
        return max(counts)

    def _ask_all(self, call: Callable[[str], _Found]) -> list[_Found]:
        """Ask all name servers and return their responses.

        If one cannot be reached, its error is raised after the others were asked.
        """
        if not self._servers.addresses:
            raise NoNameServer
        responses: list[_Found] = []
        fault: ClientError | None = None
        for address in self._servers.addresses:
            try:
                responses.append(call(address))
            except CONNECTION_FAULTS as error:  # noqa: PERF203  # the others are asked all the same
                fault = error
        if fault is not None:
            raise fault
        return responses


_Body = TypeVar("_Body")

# ---- AccessApi: RocketMQ has these requests from 5.3 on; 4.9 refuses them with `NotSupported`. A
# broker has users and lists of its own, so a change has to be made at each.

_SUBJECT: Final = "User:"
_MISSING: Final = ("is not exist", "does not exist")
"""Texts in a broker's remark, with code 16, about a user or list that it does not have."""


class AccessApi:
    """Requests about users and access lists to a broker, whose address comes first."""

    def __init__(self, requests: TypedRequests) -> None:
        self._requests = requests

    # ---- users

    def create_user(self, address: str, user: UserInfo) -> None:
        """Create a user, which must not exist."""
        header = UserRequestHeader(user.username)
        self._requests.call(address, RequestCode.AUTH_CREATE_USER, header, user)

    def update_user(self, address: str, user: UserInfo) -> None:
        """Change the given properties of a user, which must exist."""
        header = UserRequestHeader(user.username)
        self._requests.call(address, RequestCode.AUTH_UPDATE_USER, header, user)

    def delete_user(self, address: str, name: str) -> None:
        """Delete a user with its access list; for RocketMQ, an unknown user is no error."""
        self._requests.call(address, RequestCode.AUTH_DELETE_USER, UserRequestHeader(name))

    def user(self, address: str, name: str) -> UserInfo | None:
        """Return a user; None if the broker does not know it."""
        code = RequestCode.AUTH_GET_USER
        return self._body_or_none(UserInfo, address, code, UserRequestHeader(name))

    def users(self, address: str) -> tuple[UserInfo, ...]:
        """Return all users."""
        code = RequestCode.AUTH_LIST_USER
        return self._body_or_none(USER_LIST, address, code, ListUsersRequestHeader()) or ()

    # ---- access lists

    def create_acl(self, address: str, user: str, acl: AclInfo) -> None:
        """Add entries to a user's access list; each replaces an entry of the same resource."""
        header = AclRequestHeader(_SUBJECT + user)
        self._requests.call(address, RequestCode.AUTH_CREATE_ACL, header, acl)

    def delete_acl(self, address: str, user: str, resource: str | None = None) -> bool:
        """Delete a user's entry for a resource, or all; return False if the user has no list."""
        header = DeleteAclRequestHeader(_SUBJECT + user, resource=resource)
        try:
            self._requests.call(address, RequestCode.AUTH_DELETE_ACL, header)
        except NoPermission as error:
            if not _is_missing(error):
                raise
            return False
        return True

    def acl(self, address: str, user: str) -> AclInfo | None:
        """Return the access list of a user; None if the broker has no such list or user."""
        header = AclRequestHeader(_SUBJECT + user)
        try:
            return self._body_or_none(AclInfo, address, RequestCode.AUTH_GET_ACL, header)
        except NoPermission as error:
            if not _is_missing(error):
                raise
            return None

    def acls(self, address: str) -> tuple[AclInfo, ...]:
        """Return the access lists of all users."""
        code = RequestCode.AUTH_LIST_ACL
        return self._body_or_none(ACL_LIST, address, code, ListAclsRequestHeader()) or ()

    def _body_or_none(
        self, body_type: type[_Body], address: str, code: int, header: Any
    ) -> _Body | None:
        """Return the body of the response; None if it is empty, because there is no such item."""
        response = self._requests.call(address, code, header)
        return response_body(address, body_type, response) if response.body else None


def _is_missing(error: NoPermission) -> bool:
    return type(error) is NoPermission and any(text in (error.remark or "") for text in _MISSING)
