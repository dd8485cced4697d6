package rocketpoll.clients;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages, queues and answers as JSON objects. */
final class Messages {
    private Messages() {
    }

    static Message toSend(String topic, Fields fields) {
        Message message = new Message(topic, fields.body("body"));
        message.setFlag(fields.number("flag", 0));
        if (fields.containsKey("tags")) {
            message.setTags(fields.text("tags"));
        }
        if (fields.containsKey("keys")) {
            message.setKeys(fields.text("keys"));
        }
        if (fields.containsKey("delayLevel")) {
            message.setDelayTimeLevel(fields.number("delayLevel"));
        }
        fields.object("properties").forEach((name, value) -> message.putUserProperty(name, (String) value));
        // As setWaitStoreMsgOK does.
        fields.object("systemProperties")
            .forEach((name, value) -> MessageAccessor.putProperty(message, name, (String) value));
        fields.object("timers").forEach((setter, value) -> setTimer(message, setter, ((Number) value).longValue()));
        return message;
    }

    /** By setDelayTimeSec, setDelayTimeMs or setDeliverTimeMs, which RocketMQ 5 alone has. */
    private static void setTimer(Message message, String setter, long value) {
        try {
            Message.class.getMethod(setter, long.class).invoke(message, value);
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException(setter, e);
        }
    }

    static MessageQueue queue(Fields fields) {
        return new MessageQueue(fields.text("topic"), fields.text("brokerName"), fields.number("queueId"));
    }

    /** Ids of a batch stand in a row, with commas between. */
    static Fields of(SendResult result) {
        Fields fields = new Fields()
            .with("status", result.getSendStatus().name())
            .with("messageIds", List.of(result.getMsgId().split(",")))
            .with("queueOffset", result.getQueueOffset())
            .with("queueId", result.getMessageQueue().getQueueId())
            .with("topic", result.getMessageQueue().getTopic())
            .with("brokerName", result.getMessageQueue().getBrokerName());
        if (result.getOffsetMsgId() != null) {
            fields.put("offsetMessageIds", List.of(result.getOffsetMsgId().split(",")));
        }
        try { // RocketMQ 5 alone has it
            fields.with("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(result));
        } catch (ReflectiveOperationException e) {
            fields.with("recallHandle", null);
        }
        return fields;
    }

    static List<Fields> of(List<MessageExt> messages) {
        return messages.stream().map(Messages::of).toList();
    }

    /** What an application looks at. */
    static Fields of(MessageExt message) {
        Map<String, String> properties = new LinkedHashMap<>(message.getProperties());
        String offsetId = message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId();
        return new Fields()
            .with("topic", message.getTopic())
            .with("brokerName", message.getBrokerName())
            .with("queueId", message.getQueueId())
            .with("queueOffset", message.getQueueOffset())
            .with("storeSize", message.getStoreSize())
            .with("body", Fields.body(message.getBody()))
            .with("tags", message.getTags())
            .with("keys", message.getKeys())
            .with("properties", properties)
            .with("flag", message.getFlag())
            .with("bornTimestamp", message.getBornTimestamp())
            .with("bornHost", String.valueOf(message.getBornHost()))
            .with("storeTimestamp", message.getStoreTimestamp())
            .with("storeHost", String.valueOf(message.getStoreHost()))
            .with("reconsumeTimes", message.getReconsumeTimes())
            .with("messageId", message.getMsgId())
            .with("offsetMessageId", offsetId);
    }
}
