package rocketpoll.peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Looks for messages in all the ways that a client has. */
@SuppressWarnings("deprecation") // of the consumers, only this one takes any queue, offset by offset
final class Reader {
    private static final int AT_ONCE = 32;
    private static final int AT_MOST = 64;
    private static final long READY_MS_MAX = 180_000;
    private static final long POLL_MS = 20;
    private static final int POLLS_PER_REMINDER = 25;
    private static final String NO_MESSAGE = "query message by key finished, but no message";

    private final String broker;
    private final DefaultMQPullConsumer consumer;
    private final DefaultMQAdminExt admin;

    Reader(String nameServer, String broker) throws Exception {
        this.broker = broker;
        consumer = new DefaultMQPullConsumer("peers_consumer");
        consumer.setInstanceName("reader");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        admin = new DefaultMQAdminExt();
        admin.setInstanceName("admin");
        admin.setNamesrvAddr(nameServer);
        admin.start();
    }

    /** Comes back when the name server knows that the broker has the topic. */
    boolean waitForRoute(Fields request) throws Exception {
        long start = System.currentTimeMillis();
        for (int polls = 1; !hasRoute(request.text("topic")); polls++) {
            if (System.currentTimeMillis() - start > READY_MS_MAX) {
                return false;
            }
            Thread.sleep(POLL_MS);
            if (polls % POLLS_PER_REMINDER == 0) {
                remindBroker(request.text("address"));
            }
        }
        return true;
    }

    /** 5.5 often starts before it has found its name server, and would register only ten seconds later. */
    private void remindBroker(String address) throws Exception {
        Properties unchanged = new Properties();
        unchanged.setProperty("brokerPermission", "6"); // whenever it is told this, it registers
        try {
            admin.updateBrokerConfig(address, unchanged);
        } catch (RemotingException e) {
            return; // it does not listen yet
        }
    }

    private boolean hasRoute(String topic) throws Exception {
        try {
            return admin.examineTopicRouteInfo(topic).getBrokerDatas().stream()
                .anyMatch(each -> each.getBrokerName().equals(broker));
        } catch (MQClientException | RemotingException e) {
            return false; // there is no such topic yet, or a busy machine's name server answers late
        }
    }

    /** Where a queue begins and ends, and all of its messages, pulled one run after the other. */
    Fields queue(Fields request) throws Exception {
        MessageQueue queue = queueOf(request);
        Fields answer = new Fields();
        long next = admin.minOffset(queue);
        long end = admin.maxOffset(queue);
        answer.put("minOffset", next);
        answer.put("maxOffset", end);
        List<Fields> messages = new ArrayList<>();
        while (next < end) {
            PullResult result = consumer.pull(queue, "*", next, AT_ONCE);
            PullStatus status = result.getPullStatus();
            boolean isFound = status == PullStatus.FOUND;
            // Without a match, there were blank entries only.
            if (!isFound && status != PullStatus.NO_MATCHED_MSG || result.getNextBeginOffset() <= next) {
                throw new IllegalStateException(queue + " at " + next + ": " + result);
            }
            if (isFound) {
                messages.addAll(Fields.of(result));
            }
            next = result.getNextBeginOffset();
        }
        answer.put("messages", messages);
        return answer;
    }

    /** The message at an offset, as soon as there is one. */
    Fields message(Fields request) throws Exception {
        MessageQueue queue = queueOf(request);
        long queueOffset = request.number("queueOffset");
        for (long end = admin.maxOffset(queue); end < queueOffset; end = admin.maxOffset(queue)) {
            consumer.pullBlockIfNotFound(queue, "*", end, 1);
        }
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", queueOffset, 1);
        if (result.getPullStatus() != PullStatus.FOUND) {
            throw new IllegalStateException(request + ": " + result);
        }
        return Fields.of(result).get(0);
    }

    /** The message with an id that says where it is stored. */
    Fields view(Fields request) throws Exception {
        return Fields.of(admin.viewMessage(request.text("topic"), request.text("id")));
    }

    /** All messages with a key that were stored within a span of time. */
    List<Fields> byKey(Fields request) throws Exception {
        try {
            return Fields.of(admin.queryMessage(request.text("topic"), request.text("key"), AT_MOST,
                request.number("begin"), request.number("end")).getMessageList());
        } catch (MQClientException e) {
            if (String.valueOf(e.getMessage()).contains(NO_MESSAGE)) {
                return List.of();
            }
            throw e;
        }
    }

    /** The message with a producer's id. */
    Fields byUniqueKey(Fields request) throws Exception {
        MQAdminImpl found = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .getMQAdminImpl();
        return Fields.of(found.queryMessageByUniqKey(request.text("topic"), request.text("key")));
    }

    /** The offset that a queue had at a time. */
    long byTime(Fields request) throws Exception {
        return admin.searchOffset(queueOf(request), request.number("timestamp"));
    }

    private MessageQueue queueOf(Fields request) {
        return new MessageQueue(request.text("topic"), broker, (int) request.number("queueId"));
    }
}
