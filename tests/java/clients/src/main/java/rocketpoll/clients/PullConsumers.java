package rocketpoll.clients;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that pull each queue themselves, which RocketMQ keeps for those who have always done so. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private static final int AT_MOST = 32;

    private final String nameServer;
    private final Named<DefaultMQPullConsumer> running = new Named<>();

    PullConsumers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object answer(String what, Fields request) throws Exception {
        return switch (what) {
            case "start" -> start(request);
            case "stop" -> running.stop(request, DefaultMQPullConsumer::shutdown);
            case "pull" -> pull(request);
            case "commit" -> commit(request);
            default -> throw new IllegalArgumentException(what);
        };
    }

    private boolean start(Fields request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.text("group"), Keys.hook(request));
        consumer.setInstanceName(request.text("name"));
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        running.put(request.text("name"), consumer);
        return true;
    }

    private List<Fields> pull(Fields request) throws Exception {
        PullResult result = running.get(request).pull(Messages.queue(request), "*", request.longNumber("queueOffset"), AT_MOST);
        List<MessageExt> found = result.getMsgFoundList();
        return found == null ? List.of() : Messages.of(found);
    }

    private boolean commit(Fields request) throws Exception {
        running.get(request).updateConsumeOffset(Messages.queue(request), request.longNumber("queueOffset"));
        return true;
    }
}
