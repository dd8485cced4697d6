package rocketpoll.load;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Reads a topic that was filled before, from its beginning. */
final class LitePulls {
    private static final int POLL_MS = 1000;
    private static final long GIVE_UP_NANOSECONDS = 60_000_000_000L;

    private int consumers = 0;

    /** A group of its own each time. The time runs from the first messages on: before, the client starts. */
    Map<String, Object> pull(Order order) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("readers-" + ++consumers);
        consumer.setInstanceName("readers " + order.text("nameServer") + " " + consumers);
        consumer.setNamesrvAddr(order.text("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(order.number("pullBatchSize"));
        consumer.start();
        try {
            consumer.assign(consumer.fetchMessageQueues(order.text("topic")));
            return pull(consumer, order.number("messages"));
        } finally {
            new Thread(consumer::shutdown, "shutdown").start(); // 5.5 takes three seconds for it
        }
    }

    private static Map<String, Object> pull(DefaultLitePullConsumer consumer, int messages) {
        long giveUp = System.nanoTime() + GIVE_UP_NANOSECONDS;
        List<MessageExt> polled = List.of();
        while (polled.isEmpty() && System.nanoTime() < giveUp) {
            polled = consumer.poll(POLL_MS);
        }
        int before = polled.size();
        int pulled = before;
        long started = System.nanoTime();
        while (pulled < messages) {
            pulled += consumer.poll(POLL_MS).size();
            if (System.nanoTime() > giveUp) {
                throw new IllegalStateException("only " + pulled + " of " + messages + " messages");
            }
        }
        return Map.of("messages", pulled - before, "seconds", (System.nanoTime() - started) / 1e9);
    }
}
