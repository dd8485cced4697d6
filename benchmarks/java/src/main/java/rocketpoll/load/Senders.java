package rocketpoll.load;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends as fast as it is answered, for some time, and at least once. A send that fails ends the measurement:
 * it would be compared with sends that did not.
 */
final class Senders {
    private static final int TIMEOUT_MS = 20_000; // a machine that is busy is no reason to fail

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Traffic traffic = new Traffic();

    /** One producer for each broker, as long as this JVM lives. */
    DefaultMQProducer producer(String nameServer) throws MQClientException {
        DefaultMQProducer producer = producers.get(nameServer);
        if (producer == null) {
            producer = new DefaultMQProducer("load");
            producer.setInstanceName("senders " + nameServer);
            producer.setNamesrvAddr(nameServer);
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.start();
            producers.put(nameServer, producer);
        }
        return producer;
    }

    static void checkStored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("answered " + result);
        }
    }

    /** Each thread waits for the answer to its message before it sends the next. */
    Map<String, Object> send(Order order) throws Exception {
        return measure(order, 1, (producer, messages) -> producer.send(messages.get(0)));
    }

    /** Each thread waits for the answer to its batch before it sends the next. */
    Map<String, Object> sendBatches(Order order) throws Exception {
        return measure(order, order.number("batch"), DefaultMQProducer::send);
    }

    /** One thread, which waits only while too many answers are outstanding. */
    Map<String, Object> sendAsynchronously(Order order) throws Exception {
        DefaultMQProducer producer = producer(order.text("nameServer"));
        int window = order.number("window");
        Semaphore free = new Semaphore(window);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failure.compareAndSet(null, new IllegalStateException("answered " + result));
                }
                free.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.compareAndSet(null, error);
                free.release();
            }
        };
        long sent = 0;
        long started = System.nanoTime();
        long end = started + order.nanoseconds();
        do {
            free.acquire();
            producer.send(traffic.message(order, sent), callback);
            sent++;
        } while (System.nanoTime() < end && failure.get() == null);
        free.acquire(window);
        long took = System.nanoTime() - started;
        if (failure.get() != null) {
            throw new IllegalStateException("an asynchronous send failed", failure.get());
        }
        return sent(sent, took);
    }

    /** So many messages in batches, for those who are going to read them. */
    Map<String, Object> fill(Order order) throws Exception {
        DefaultMQProducer producer = producer(order.text("nameServer"));
        int batch = order.number("batch");
        long started = System.nanoTime();
        long sent = 0;
        for (; sent < order.number("messages"); sent += batch) {
            checkStored(producer.send(messages(order, batch, sent)));
        }
        return sent(sent, System.nanoTime() - started);
    }

    private Map<String, Object> measure(Order order, int batch, Sending sending) throws Exception {
        DefaultMQProducer producer = producer(order.text("nameServer"));
        int threads = order.number("threads");
        ExecutorService senders = Executors.newFixedThreadPool(threads);
        try {
            long started = System.nanoTime();
            long end = started + order.nanoseconds();
            Callable<Long> untilTheEnd = () -> {
                long sent = 0;
                do {
                    checkStored(sending.send(producer, messages(order, batch, sent)));
                    sent += batch;
                } while (System.nanoTime() < end);
                return sent;
            };
            long sent = 0;
            for (Future<Long> each : senders.invokeAll(Collections.nCopies(threads, untilTheEnd))) {
                sent += each.get();
            }
            return sent(sent, System.nanoTime() - started);
        } finally {
            senders.shutdownNow();
        }
    }

    private List<Message> messages(Order order, int count, long sent) {
        List<Message> messages = new ArrayList<>(count);
        for (int number = 0; number < count; number++) {
            messages.add(traffic.message(order, sent + number));
        }
        return messages;
    }

    private static Map<String, Object> sent(long messages, long nanoseconds) {
        return Map.of("messages", messages, "seconds", nanoseconds / 1e9);
    }

    private interface Sending {
        SendResult send(DefaultMQProducer producer, List<Message> messages) throws Exception;
    }
}
