package rocketpoll.clients;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Ends each transaction as the message says: its property {@code local} at once, {@code check} when it is checked. */
final class Transactions implements TransactionListener {
    private final List<Fields> checks = new CopyOnWriteArrayList<>();

    List<Fields> checks() {
        return List.copyOf(checks);
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return state(message, "local");
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        checks.add(new Fields()
            .with("body", Fields.body(message.getBody()))
            .with("topic", message.getTopic())
            .with("transactionId", message.getTransactionId()));
        return state(message, "check");
    }

    private static LocalTransactionState state(Message message, String moment) {
        String state = message.getUserProperty(moment);
        return state == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(state);
    }
}
