package rocketpoll.clients;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that poll. */
final class LiteConsumers {
    /** When queues are assigned to a client of 5.5, its heartbeat may be left out, and is due in half a minute. */
    private static final int HEARTBEAT_MS = 1000;

    private final String nameServer;
    private final Named<DefaultLitePullConsumer> running = new Named<>();

    LiteConsumers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object answer(String what, Fields request) throws Exception {
        if (what.equals("start")) {
            return start(request);
        }
        if (what.equals("stop")) {
            return running.stop(request, DefaultLitePullConsumer::shutdown);
        }
        return answer(what, request, running.get(request));
    }

    private static Object answer(String what, Fields request, DefaultLitePullConsumer consumer) throws Exception {
        switch (what) {
            case "assign" -> assign(request, consumer);
            case "seek" -> consumer.seek(Messages.queue(request), request.longNumber("queueOffset"));
            case "seek to begin" -> consumer.seekToBegin(Messages.queue(request));
            case "seek to end" -> consumer.seekToEnd(Messages.queue(request));
            case "pause" -> consumer.pause(List.of(Messages.queue(request)));
            case "resume" -> consumer.resume(List.of(Messages.queue(request)));
            case "commit" -> consumer.commitSync();
            default -> {
                return find(what, request, consumer);
            }
        }
        return true;
    }

    private static Object find(String what, Fields request, DefaultLitePullConsumer consumer) throws Exception {
        return switch (what) {
            case "poll" -> poll(consumer, request.number("timeoutMs"));
            case "assigned" -> queueIds(consumer.assignment());
            case "committed" -> consumer.committed(Messages.queue(request));
            case "offset for time" ->
                consumer.offsetForTimestamp(Messages.queue(request), request.longNumber("timestamp"));
            default -> throw new IllegalArgumentException(what);
        };
    }

    /** A poll gives what one pull has brought. This waits for the first, and takes what else is there. */
    private static List<Fields> poll(DefaultLitePullConsumer consumer, int timeoutMs) {
        List<Fields> polled = new ArrayList<>();
        List<MessageExt> messages = consumer.poll(timeoutMs);
        while (!messages.isEmpty()) {
            polled.addAll(Messages.of(messages));
            messages = consumer.poll(0);
        }
        return polled;
    }

    private boolean start(Fields request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.text("group"), Keys.hook(request));
        consumer.setInstanceName(request.text("name"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(request.flag("autoCommit"));
        consumer.setAutoCommitIntervalMillis(1000); // it takes no less
        if (request.flag("broadcasting")) {
            var model = consumer.getMessageModel(); // which stands in another package since 5.0
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
        }
        subscribe(request, consumer);
        consumer.start();
        running.put(request.text("name"), consumer);
        return true;
    }

    /** One that is assigned its queues later subscribes to nothing, but may say what it wants of them. */
    private static void subscribe(Fields request, DefaultLitePullConsumer consumer) throws MQClientException {
        if (request.containsKey("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(request.text("sql")));
        } else if (request.containsKey("assignedTags")) {
            consumer.setSubExpressionForAssign(request.text("topic"), request.text("assignedTags"));
        } else if (request.containsKey("topic")) {
            consumer.subscribe(request.text("topic"), request.text("tags", "*"));
        }
    }

    private static void assign(Fields request, DefaultLitePullConsumer consumer) throws MQClientException {
        String topic = request.text("topic");
        List<Integer> queueIds = request.numbers("queueIds");
        consumer.assign(consumer.fetchMessageQueues(topic).stream()
            .filter(queue -> queueIds.contains(queue.getQueueId()))
            .toList());
    }

    private static List<Integer> queueIds(Set<MessageQueue> queues) {
        return queues.stream().map(MessageQueue::getQueueId).sorted().toList();
    }
}
