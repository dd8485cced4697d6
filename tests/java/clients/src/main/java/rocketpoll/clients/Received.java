package rocketpoll.clients;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.common.message.MessageExt;

/** What a listener was called with, and whether it fails. */
final class Received {
    private final int failTimes;
    private final String failBody;
    private final boolean hangs;
    private final List<Fields> messages = new ArrayList<>();

    /** Fails on a message's first times: on all messages, or on those with one body. Or never comes back. */
    Received(int failTimes, String failBody, boolean hangs) {
        this.hangs = hangs;
        this.failTimes = failTimes;
        this.failBody = failBody;
    }

    boolean take(List<MessageExt> taken) {
        keep(taken);
        if (hangs) {
            hang();
        }
        return taken.stream().noneMatch(this::fails);
    }

    private synchronized void keep(List<MessageExt> taken) {
        messages.addAll(Messages.of(taken));
    }

    private static void hang() {
        try {
            new CountDownLatch(1).await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private boolean fails(MessageExt message) {
        return message.getReconsumeTimes() < failTimes
            && (failBody == null || failBody.equals(Fields.body(message.getBody())));
    }

    synchronized List<Fields> from(int index) {
        return List.copyOf(messages.subList(index, messages.size()));
    }
}
