package rocketpoll.load;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;

/**
 * The messages that are sent: all alike, the same with a tag and a key each, or varied as those of services
 * are, which are the kind that benchmarks/traffic.py makes. The varied ones are made before anything is
 * measured, and sent again and again.
 */
final class Traffic {
    private static final int VARIED = 1_000;
    private static final String[] TAGS = {"created", "paid", "refunded"};
    private static final List<String> PROPERTIES = List.of("source", "version", "region", "trace", "kind");

    private final List<Message> varied = new ArrayList<>(VARIED);

    Traffic() {
        Random random = new Random(2026);
        for (int number = 0; number < VARIED; number++) {
            varied.add(varied(random));
        }
    }

    private static Message varied(Random random) {
        int size = (int) Math.exp(Math.log(400) + 1.2 * random.nextGaussian());
        byte[] body = new byte[Math.min(Math.max(size, 50), 8_192)];
        random.nextBytes(body);
        List<String> keys = new ArrayList<>();
        for (int left = 1 + random.nextInt(3); left > 0; left--) {
            keys.add("order-" + random.nextInt(1_000_000));
        }
        Message message = new Message("", TAGS[random.nextInt(TAGS.length)], String.join(" ", keys), body);
        message.putUserProperty("tenant", "tenant-" + random.nextInt(50));
        List<String> names = new ArrayList<>(PROPERTIES);
        Collections.shuffle(names, random);
        for (String name : names.subList(0, 1 + random.nextInt(4))) {
            message.putUserProperty(name, Long.toHexString(random.nextLong() >>> random.nextInt(56)));
        }
        return message;
    }

    /** The message with this number, which its producer may change. */
    Message message(Order order, long number) {
        String topic = order.text("topic");
        if (order.flag("tagged")) {
            String key = "order-" + number % 1_000_000;
            return new Message(topic, TAGS[(int) (number % TAGS.length)], key, new byte[order.number("bodyBytes")]);
        }
        if (!order.flag("varied")) {
            return new Message(topic, new byte[order.number("bodyBytes")]);
        }
        Message kept = varied.get((int) (number % VARIED));
        Message message = new Message(topic, kept.getTags(), kept.getKeys(), kept.getBody());
        kept.getProperties().forEach((name, value) -> {
            if (message.getProperty(name) == null) {
                message.putUserProperty(name, value);
            }
        });
        return message;
    }
}
