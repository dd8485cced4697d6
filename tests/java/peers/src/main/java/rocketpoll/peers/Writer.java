package rocketpoll.peers;

import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends messages to the queues that they are meant for. */
final class Writer {
    private static final int TIMEOUT_MS = 20_000;

    private final String broker;
    private final TransactionMQProducer producer;

    Writer(String nameServer, String broker) throws Exception {
        this.broker = broker;
        producer = new TransactionMQProducer("peers_producer");
        producer.setInstanceName("writer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new Decided());
        producer.start();
    }

    /** One message, or several of one queue as a batch. */
    Fields send(Fields request) throws Exception {
        MessageQueue queue = new MessageQueue(request.text("topic"), broker, (int) request.number("queueId"));
        List<Message> messages =
            request.objects("messages").stream().map(each -> message(queue.getTopic(), each)).toList();
        DefaultMQProducer plain = producer;
        return sent(messages.size() == 1 ? plain.send(messages.get(0), queue) : plain.send(messages, queue));
    }

    /** One message that counts if {@code commit} says so. The broker learns that a little later. */
    Fields sendInTransaction(Fields request) throws Exception {
        Message message = message(request.text("topic"), request.object("message"));
        return sent(producer.sendMessageInTransaction(message, request.get("commit")));
    }

    private static Message message(String topic, Fields fields) {
        Message message = new Message(topic, fields.bytes("body"));
        message.setFlag((int) fields.number("flag"));
        if (fields.get("tags") != null) {
            message.setTags(fields.text("tags"));
        }
        if (fields.get("keys") != null) {
            message.setKeys(fields.text("keys"));
        }
        if (fields.number("delayLevel") > 0) {
            message.setDelayTimeLevel((int) fields.number("delayLevel"));
        }
        // Also names that are reserved, as messages have them that somebody has passed on.
        fields.object("properties").forEach((name, value) -> MessageAccessor.putProperty(message, name, (String) value));
        return message;
    }

    /** Ids of a batch stand in a row, with commas between. */
    private static Fields sent(SendResult result) {
        Fields fields = new Fields();
        fields.put("status", result.getSendStatus().name());
        fields.put("messageIds", List.of(result.getMsgId().split(",")));
        fields.put("queueOffset", result.getQueueOffset());
        fields.put("queueId", result.getMessageQueue().getQueueId());
        if (result.getOffsetMsgId() != null) {
            fields.put("offsetMessageIds", List.of(result.getOffsetMsgId().split(",")));
        }
        return fields;
    }

    /** Does as the request says. */
    private static final class Decided implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object commit) {
            return Boolean.TRUE.equals(commit)
                ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }
}
