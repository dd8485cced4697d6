package rocketpoll.clients;

import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends in all the ways that a producer has. */
final class Producers {
    private static final int CALLBACKS_SECONDS_MAX = 20;

    private final String nameServer;
    private final Named<DefaultMQProducer> running = new Named<>();
    private final Map<String, FutureTask<Message>> replies = new HashMap<>();

    Producers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object answer(String what, Fields request) throws Exception {
        return switch (what) {
            case "start" -> start(request);
            case "stop" -> running.stop(request, DefaultMQProducer::shutdown);
            case "send" -> sendEach(request, DefaultMQProducer::send);
            case "send to queue" -> sendToQueue(request);
            case "send in order" -> sendInOrder(request);
            case "send asynchronously" -> sendAsynchronously(request);
            case "send one-way" -> sendOneWay(request);
            case "send in transaction" -> sendEach(request,
                (producer, message) -> ((TransactionMQProducer) producer).sendMessageInTransaction(message, null));
            case "checks" -> ((Transactions) ((TransactionMQProducer) running.get(request)).getTransactionListener()).checks();
            case "recall" -> recall(request);
            case "send batch" -> Messages.of(running.get(request).send(messages(request)));
            case "request" -> request(request);
            case "replied" -> replied(request);
            case "reply" -> reply(request);
            case "publish queues" -> publishQueues(request);
            default -> throw new IllegalArgumentException(what);
        };
    }

    private boolean start(Fields request) throws Exception {
        DefaultMQProducer producer = newProducer(request);
        producer.setInstanceName(request.text("name"));
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(request.number("timeoutMs", 10_000));
        if (request.containsKey("messageBytesMax")) {
            producer.setMaxMessageSize(request.number("messageBytesMax"));
        }
        producer.start();
        running.put(request.text("name"), producer);
        return true;
    }

    private static DefaultMQProducer newProducer(Fields request) {
        if (!request.containsKey("transactions")) {
            return new DefaultMQProducer(request.text("group"), Keys.hook(request), request.flag("trace"), null);
        }
        TransactionMQProducer producer = new TransactionMQProducer(request.text("group"), Keys.hook(request));
        producer.setTransactionListener(new Transactions());
        producer.setHeartbeatBrokerInterval(1_000); // 4.9 joins its group with the second one
        return producer;
    }

    private List<Fields> sendEach(Fields request, Sending sending) throws Exception {
        DefaultMQProducer producer = running.get(request);
        List<Fields> results = new ArrayList<>();
        for (Message each : messages(request)) {
            results.add(Messages.of(sending.send(producer, each)));
        }
        return results;
    }

    /** RocketMQ 5 alone has it. */
    private Object recall(Fields request) throws Exception {
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(running.get(request), request.text("topic"), request.text("handle"));
        } catch (InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }

    private List<Fields> sendToQueue(Fields request) throws Exception {
        MessageQueue queue = Messages.queue(request);
        return sendEach(request, (producer, message) -> producer.send(message, queue));
    }

    /** Messages with the same key go to the same queue. */
    private List<Fields> sendInOrder(Fields request) throws Exception {
        MessageQueueSelector byHash = new SelectMessageQueueByHash();
        return sendEach(request, (producer, message) -> producer.send(message, byHash, message.getKeys()));
    }

    private List<Fields> sendAsynchronously(Fields request) throws Exception {
        List<CompletableFuture<SendResult>> sent = new ArrayList<>();
        for (Message each : messages(request)) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            sent.add(result);
            running.get(request).send(each, new SendCallback() {
                @Override
                public void onSuccess(SendResult sendResult) {
                    result.complete(sendResult);
                }

                @Override
                public void onException(Throwable error) {
                    result.completeExceptionally(error);
                }
            });
        }
        List<Fields> results = new ArrayList<>();
        for (CompletableFuture<SendResult> each : sent) {
            results.add(Messages.of(each.get(CALLBACKS_SECONDS_MAX, TimeUnit.SECONDS)));
        }
        return results;
    }

    private boolean sendOneWay(Fields request) throws Exception {
        for (Message each : messages(request)) {
            running.get(request).sendOneway(each);
        }
        return true;
    }

    /** Ask for a reply, and come back at once. A callback of RocketMQ's own would be called before there is one. */
    private boolean request(Fields request) {
        DefaultMQProducer producer = running.get(request);
        Message message = Messages.toSend(request.text("topic"), request.object("message"));
        FutureTask<Message> reply = new FutureTask<>(() -> producer.request(message, request.number("timeoutMs")));
        replies.put(request.text("name"), reply);
        new Thread(reply).start();
        return true;
    }

    /** The reply that has come to the last request. */
    private Fields replied(Fields request) throws Exception {
        Message found = replies.get(request.text("name")).get(CALLBACKS_SECONDS_MAX, TimeUnit.SECONDS);
        return new Fields().with("body", Fields.body(found.getBody())).with("properties", new TreeMap<>(found.getProperties()));
    }

    /** Reply to a message that came with these properties. */
    private Fields reply(Fields request) throws Exception {
        Message asked = new Message(request.text("topic"), new byte[1]);
        request.object("properties").forEach((name, value) -> MessageAccessor.putProperty(asked, name, (String) value));
        return Messages.of(running.get(request).send(MessageUtil.createReplyMessage(asked, request.body("body"))));
    }

    private List<Integer> publishQueues(Fields request) throws Exception {
        Collection<MessageQueue> queues = running.get(request).fetchPublishMessageQueues(request.text("topic"));
        return queues.stream().map(MessageQueue::getQueueId).sorted().toList();
    }

    private static List<Message> messages(Fields request) {
        String topic = request.text("topic");
        return request.objects("messages").stream().map(each -> Messages.toSend(topic, each)).toList();
    }

    private interface Sending {
        SendResult send(DefaultMQProducer producer, Message message) throws Exception;
    }
}
