"""RocketMQ's names on the path of a pull, which readers of its code would look up.

They are those of RocketMQ 4.9, class by class: a class, then its methods, fields and constants.
Getters and setters are listed by their field. Names of the JDK and local variables are left out.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = {
    # the broker
    "PullRequestHoldService": """TOPIC_QUEUEID_SEPARATOR pullRequestTable systemClock buildKey
        suspendPullRequest checkHoldRequest run notifyMessageArriving""",
    "ServiceThread": "waitForRunning isStopped wakeup getServiceName",
    "SystemClock": "",
    "ManyPullRequest": "pullRequestList addPullRequest cloneListAndClear",
    "broker.longpolling.PullRequest": "",
    "PullRequest": """requestCommand clientChannel timeoutMillis suspendTimestamp pullFromThisOffset
        subscriptionData messageFilter setNextOffset""",
    "MessageFilter": "isMatchedByConsumeQueue isMatchedByCommitLog",
    "ConsumeQueueExt": "CqExtUnit",
    "NotifyMessageArrivingListener": "pullRequestHoldService arriving",
    "MessageArrivingListener": "arriving",
    "PullMessageProcessor": "processRequest executeRequestWhenWakeup",
    "AsyncNettyRequestProcessor": "",
    "NettyRequestProcessor": "",
    "RequestTask": "",
    "Channel": "writeAndFlush",
    "ChannelHandlerContext": "",
    "ChannelFuture": "",
    "ChannelFutureListener": "operationComplete",
    "BrokerController": """pullMessageExecutor getBrokerConfig getMessageStore
        getPullRequestHoldService getPullMessageProcessor""",
    "BrokerConfig": "longPollingEnable shortPollingTimeMills",
    "BrokerRole": "SLAVE",
    # the wire
    "RemotingCommand": "opaque markResponseType getCode",
    "RemotingCommandException": "",
    "PullMessageRequestHeader": """consumerGroup topic queueId queueOffset maxMsgNums
        suspendTimeoutMillis""",
    "ResponseCode": "PULL_NOT_FOUND",
    "GetMessageStatus": "FOUND NO_MESSAGE_IN_QUEUE OFFSET_FOUND_NULL OFFSET_OVERFLOW_ONE",
    "SubscriptionData": "SUB_ALL",
    "MessageModel": "BROADCASTING CLUSTERING",
    # the store
    "DefaultMessageStore": "doDispatch messageArrivingListener brokerConfig getConfirmOffset",
    "MessageStore": "getMessage getMaxOffsetInQueue now",
    "MessageStoreConfig": "brokerRole duplicationEnable",
    "GetMessageResult": "",
    "ReputMessageService": """run doReput reputFromOffset isCommitLogAvailable
        notifyMessageArrive4MultiQueue""",
    "CommitLog": "getData checkMessageAndReturnSize",
    "ConsumeQueue": "",
    "IndexFile": "",
    "consumerOffsetTable": "",
    "SelectMappedBufferResult": "startOffset size byteBuffer",
    "DispatchRequest": """topic queueId consumeQueueOffset tagsCode storeTimestamp bitMap
        propertiesMap bufferSize msgSize success""",
    # pull consumers
    "LitePullConsumer": "",
    "DefaultLitePullConsumer": """defaultLitePullConsumerImpl setNamesrvAddr subscribe start poll
        shutdown setPollTimeoutMillis setTraceDispatcher setConsumerGroup getMessageModel
        getAllocateMessageQueueStrategy getMessageQueueListener getPullBatchSize""",
    "DefaultMQPullConsumer": "brokerSuspendMaxTimeMillis",
    "ClientConfig": "changeInstanceNameToPID namespace",
    "NamespaceUtil": "wrapNamespace",
    "RPCHook": "",
    "DefaultLitePullConsumerImpl": """defaultLitePullConsumer serviceState checkConfig
        initMQClientFactory initRebalanceImpl initPullAPIWrapper initOffsetStore startScheduleTask
        operateAfterRunning mQClientFactory rebalanceImpl MessageQueueListenerImpl
        updateAssignedMessageQueue updatePullTask startPullTask taskTable
        scheduledThreadPoolExecutor subscriptionType assignedMessageQueue messageQueueLock
        nextPullOffset updatePullOffset pull pullTimeDelayMillsWhenException submitConsumeRequest
        consumeRequestCache resetTopic poll""",
    "PULL_TIME_DELAY_MILLS_ON_EXCEPTION": "",
    "ServiceState": "CREATE_JUST RUNNING START_FAILED SHUTDOWN_ALREADY",
    "SubscriptionType": "SUBSCRIBE",
    "FilterAPI": "buildSubscriptionData",
    "PullTaskImpl": "messageQueue cancelled currentThread run",
    "MessageQueueLock": "fetchLockObject",
    "AssignedMessageQueue": "getProcessQueue seekOffset updateConsumeOffset",
    "ConsumeRequest": "messageExts messageQueue processQueue",
    "MQClientException": "",
    "FAQUrl": "suggestTodo CLIENT_SERVICE_NOT_OK",
    # push consumers
    "DefaultMQPushConsumer": """setNamesrvAddr setPullInterval registerMessageListener subscribe
        start""",
    "DefaultMQPushConsumerImpl": "pullMessage executePullRequestImmediately correctTagsOffset",
    "client.impl.consumer.PullRequest": "",
    "PullMessageService": "run pullRequestQueue pullMessage",
    "MessageListener": "",
    "MessageListenerConcurrently": "consumeMessage",
    "ConsumeConcurrentlyStatus": "",
    "ConsumeConcurrentlyContext": "",
    # rebalancing
    "RebalanceService": "",
    "RebalanceImpl": """rebalanceByTopic messageModel topicSubscribeInfoTable mQClientFactory
        consumerGroup allocateMessageQueueStrategy subscriptionInner
        updateProcessQueueTableInRebalance messageQueueChanged""",
    "RebalanceLitePullImpl": "litePullConsumerImpl messageQueueChanged",
    "AllocateMessageQueueStrategy": "allocate getName",
    "MessageQueueListener": "messageQueueChanged",
    # shared by all clients
    "MQClientInstance": "start findConsumerIdList getClientId",
    "MQClientAPIImpl": "",
    "MQConsumerInner": "",
    "PullAPIWrapper": "pullKernelImpl",
    "PullResult": "pullStatus msgFoundList nextBeginOffset",
    "PullStatus": "FOUND NO_MATCHED_MSG OFFSET_ILLEGAL",
    "ProcessQueue": "putMessage removeMessage dropped",
    "MessageQueue": "topic brokerName",
    "MessageExt": "getBody",
}
