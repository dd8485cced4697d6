package rocketpoll.load;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * How long a message takes from the call that sends it to the listener of a push consumer. Both are in this
 * JVM, so that one clock says it: a body begins with the time at which it was sent.
 */
final class Pushes {
    private static final long WAIT_NANOSECONDS = 60_000_000_000L;
    private static final long POLL_NANOSECONDS = 20_000_000;
    private static final long WARMING = -1;

    private final Senders senders;
    private final Map<String, Listener> listeners = new HashMap<>();

    Pushes(Senders senders) {
        this.senders = senders;
    }

    /** So many messages a second, for some time; the microseconds that each took, in order of size. */
    Map<String, Object> measure(Order order) throws Exception {
        DefaultMQProducer producer = senders.producer(order.text("nameServer"));
        Listener listener = listener(order, producer);
        long interval = 1_000_000_000L / order.number("perSecond");
        int count = (int) Math.max(1, order.nanoseconds() / interval);
        listener.took.clear();
        long next = System.nanoTime();
        for (int number = 0; number < count; number++, next += interval) {
            LockSupport.parkNanos(next - System.nanoTime());
            Senders.checkStored(producer.send(message(order, System.nanoTime())));
        }
        waitUntil("all messages with the listener", () -> listener.took.size() >= count);
        double[] microseconds = listener.took.stream().mapToDouble(each -> each / 1e3).toArray();
        Arrays.sort(microseconds);
        List<Double> sorted = new ArrayList<>();
        Arrays.stream(microseconds).forEach(sorted::add);
        return Map.of("microseconds", sorted);
    }

    /** The consumer of a topic, started when it is first asked for, and by then at work on all queues. */
    private Listener listener(Order order, DefaultMQProducer producer) throws Exception {
        String key = order.text("nameServer") + " " + order.text("topic");
        Listener listener = listeners.get(key);
        if (listener == null) {
            Senders.checkStored(producer.send(message(order, WARMING))); // makes the topic
            listener = new Listener();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("listeners");
            consumer.setInstanceName("listeners " + key);
            consumer.setNamesrvAddr(order.text("nameServer"));
            consumer.subscribe(order.text("topic"), "*");
            consumer.registerMessageListener(listener);
            consumer.start();
            listeners.put(key, listener);
            warm(order, producer, listener);
        }
        return listener;
    }

    /** Sends to every queue until something of each has come. */
    private static void warm(Order order, DefaultMQProducer producer, Listener listener) throws Exception {
        var queues = producer.fetchPublishMessageQueues(order.text("topic"));
        waitUntil("a listener that hears of every queue", () -> {
            for (var queue : queues) {
                Senders.checkStored(producer.send(message(order, WARMING), queue));
            }
            return listener.queues.size() >= queues.size();
        });
    }

    private static Message message(Order order, long sentAt) {
        byte[] body = new byte[order.number("bodyBytes")];
        ByteBuffer.wrap(body).putLong(sentAt);
        return new Message(order.text("topic"), body);
    }

    private static void waitUntil(String what, Condition condition) throws Exception {
        long giveUp = System.nanoTime() + WAIT_NANOSECONDS;
        while (!condition.holds()) {
            if (System.nanoTime() > giveUp) {
                throw new IllegalStateException("there is still not: " + what);
            }
            LockSupport.parkNanos(POLL_NANOSECONDS);
        }
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    /** Notes how long each message took. */
    private static final class Listener implements MessageListenerConcurrently {
        private final ConcurrentLinkedQueue<Long> took = new ConcurrentLinkedQueue<>();
        private final Set<Integer> queues = ConcurrentHashMap.newKeySet();

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
            List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            long now = System.nanoTime();
            for (MessageExt each : messages) {
                long sentAt = ByteBuffer.wrap(each.getBody()).getLong();
                if (sentAt == WARMING) {
                    queues.add(each.getQueueId());
                } else {
                    took.add(now - sentAt);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }
}
