package rocketpoll.vip;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages and consumes them, with clients as they are when nothing is set.
 *
 * <p>Arguments: the name server, the topic, how many messages. Prints one line for each that was sent, with what the
 * broker shows by its id, and one for each that came, with the names of its properties.
 */
public final class Main {
    private static final int SECONDS_MAX = 60;

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);

        DefaultMQProducer producer = new DefaultMQProducer("producers-of-" + topic);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        for (int number = 0; number < count; number++) {
            Message message = new Message(topic, "a tag", "a key", ("message " + number).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("__CRC32#", "mine");
            SendResult result = producer.send(message);
            MessageExt stored = producer.viewMessage(result.getOffsetMsgId());
            System.out.println("sent\t" + result.getSendStatus() + "\t" + new String(stored.getBody(), StandardCharsets.UTF_8));
        }

        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers-of-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "a tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                Map<String, String> properties = new TreeMap<>(each.getProperties());
                System.out.println("came\t" + new String(each.getBody(), StandardCharsets.UTF_8) + "\t" + properties.keySet()
                    + "\t" + properties.get("__CRC32#"));
                missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean came = missing.await(SECONDS_MAX, TimeUnit.SECONDS);
        System.out.flush();
        System.exit(came ? 0 : 1);
    }
}
