package rocketpoll.clients;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes without end: {@code NAMESRV TOPIC GROUP}. Each message is printed as a line of JSON, whenever it
 * comes. Ends when its input does.
 */
public final class LoadConsumer {
    private static final int PAUSE_MS = 100; // when the broker is not there, instead of a second

    /** A broker that has started anew knows no subscription; 4.9 would tell it of ours in half a minute. */
    private static final int HEARTBEAT_MS = 500;

    private LoadConsumer() {
    }

    public static void main(String[] args) throws Exception {
        Lines lines = new Lines();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPullTimeDelayMillsWhenException(PAUSE_MS);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> lines.print(consumed(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        lines.waitForEndOfInput();
        consumer.shutdown();
        System.exit(0);
    }

    private static Fields consumed(MessageExt message) {
        return new Fields()
            .with("queueId", message.getQueueId())
            .with("queueOffset", message.getQueueOffset())
            .with("messageId", message.getMsgId())
            .with("body", Fields.body(message.getBody()));
    }
}
