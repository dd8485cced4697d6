package rocketpoll.clients;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends without end from two threads, whatever happens to the broker: {@code NAMESRV TOPIC}. What was
 * acknowledged is printed, one line of JSON each; what was not is sent again. Ends when its input does.
 */
public final class LoadProducer {
    private static final int THREADS = 2;
    private static final int TIMEOUT_MS = 1000;
    private static final int PAUSE_MS = 20;

    private final DefaultMQProducer producer = new DefaultMQProducer("load");
    private final AtomicBoolean sending = new AtomicBoolean(true);
    private final Lines lines;
    private final String topic;

    private LoadProducer(String nameServer, String topic, Lines lines) {
        this.topic = topic;
        this.lines = lines;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
    }

    public static void main(String[] args) throws Exception {
        Lines lines = new Lines();
        LoadProducer load = new LoadProducer(args[0], args[1], lines);
        load.producer.start();
        Thread[] threads = new Thread[THREADS];
        for (int number = 0; number < THREADS; number++) {
            String name = "sender " + number;
            threads[number] = new Thread(() -> load.send(name), name);
            threads[number].start();
        }
        lines.waitForEndOfInput();
        load.sending.set(false);
        for (Thread each : threads) {
            each.join();
        }
        System.exit(0);
    }

    private void send(String name) {
        for (long number = 0; sending.get(); number++) {
            String body = name + " " + number;
            while (!isSent(body) && sending.get()) {
                pause();
            }
        }
    }

    private boolean isSent(String body) {
        try {
            SendResult result = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                return false;
            }
            lines.print(Messages.of(result).with("body", body));
            return true;
        } catch (Exception e) {
            return false; // a broker that has just been killed gives many reasons
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
