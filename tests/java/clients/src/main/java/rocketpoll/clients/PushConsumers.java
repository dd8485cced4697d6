package rocketpoll.clients;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that are called. */
final class PushConsumers {
    private static final long SUSPEND_MS = 50; // of a queue whose message has failed, when in order

    /** When queues are assigned to a client of 5.5, its heartbeat may be left out, and is due in half a minute. */
    private static final int HEARTBEAT_MS = 1000;

    private final String nameServer;
    private final Named<Running> running = new Named<>();

    PushConsumers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object answer(String what, Fields request) throws Exception {
        return switch (what) {
            case "start" -> start(request);
            case "stop" -> running.stop(request, each -> each.consumer().shutdown());
            case "received" -> running.get(request).received().from(request.number("from"));
            case "assigned" -> assigned(running.get(request).consumer(), request.text("topic"));
            case "client id" -> running.get(request).consumer().buildMQClientId();
            default -> throw new IllegalArgumentException(what);
        };
    }

    private boolean start(Fields request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.text("group"), Keys.hook(request), new AllocateMessageQueueAveragely(), request.flag("trace"), null);
        consumer.setInstanceName(request.text("name"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes(request.number("maxReconsumeTimes", consumer.getMaxReconsumeTimes()));
        if (request.flag("broadcasting")) {
            var model = consumer.getMessageModel(); // which stands in another package since 5.0
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
        }
        if (request.containsKey("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(request.text("sql")));
        } else {
            consumer.subscribe(request.text("topic"), request.text("tags", "*"));
        }
        Received received = new Received(request.number("failTimes", 0), request.text("failBody", null), request.flag("hangs"));
        listen(consumer, received, request.flag("orderly"));
        if (request.flag("leavesRebalance")) { // to the broker, which may tell it to pop; not known to 4.9
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, (long) request.number("popInvisibleTime", 60_000));
        }
        startOrClean(consumer);
        running.put(request.text("name"), new Running(consumer, received));
        return true;
    }

    private static void listen(DefaultMQPushConsumer consumer, Received received, boolean orderly) {
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> received.take(messages)
                ? ConsumeOrderlyStatus.SUCCESS
                : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> received.take(messages)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    /** One that the broker refuses would stay in the JVM, half started. */
    private static void startOrClean(DefaultMQPushConsumer consumer) throws MQClientException {
        try {
            consumer.start();
        } catch (MQClientException e) {
            consumer.shutdown();
            throw e;
        }
    }

    private static List<Integer> assigned(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic))
            .map(MessageQueue::getQueueId)
            .sorted()
            .toList();
    }

    private record Running(DefaultMQPushConsumer consumer, Received received) {
    }
}
