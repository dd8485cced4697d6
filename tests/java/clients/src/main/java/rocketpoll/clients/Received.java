package rocketpoll.clients;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.MessageExt;

/** What a listener was called with, and whether it fails. */
final class Received {
    private final int failTimes;
    private final String failBody;
    private final List<Fields> messages = new ArrayList<>();

    /** Fails on a message's first times: on all messages, or on those with one body. */
    Received(int failTimes, String failBody) {
        this.failTimes = failTimes;
        this.failBody = failBody;
    }

    synchronized boolean take(List<MessageExt> taken) {
        messages.addAll(Messages.of(taken));
        return taken.stream().noneMatch(this::fails);
    }

    private boolean fails(MessageExt message) {
        return message.getReconsumeTimes() < failTimes
            && (failBody == null || failBody.equals(Fields.body(message.getBody())));
    }

    synchronized List<Fields> from(int index) {
        return List.copyOf(messages.subList(index, messages.size()));
    }
}
