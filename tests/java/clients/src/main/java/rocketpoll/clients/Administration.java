package rocketpoll.clients;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Topics, offsets, and messages by their ids and keys, as every client may ask for them; and who consumes. */
final class Administration {
    private static final int TOPIC_NOT_EXIST = 17;
    private static final int NOTHING_CONSUMED = 206;
    private static final int BROADCAST_CONSUMPTION = 213;
    private static final Set<Integer> NOTHING_KNOWN_OF_GROUP =
        Set.of(TOPIC_NOT_EXIST, NOTHING_CONSUMED, BROADCAST_CONSUMPTION);
    private static final int NO_MESSAGE = 208;
    private static final int AT_MOST = 64;

    private final DefaultMQProducer client = new DefaultMQProducer("administration", Keys.hook(new Fields()));
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(Keys.hook(new Fields()));

    Administration(String nameServer) throws Exception {
        client.setInstanceName("administration");
        client.setNamesrvAddr(nameServer);
        client.start();
        admin.setInstanceName("admin");
        admin.setNamesrvAddr(nameServer);
        admin.start();
    }

    Object answer(String what, Fields request) throws Exception {
        return switch (what) {
            case "queues" -> queues(request.text("topic"));
            case "remind" -> remind(request.text("address"));
            case "create topic" -> createTopic(request);
            case "create topic as a client" -> createTopicAsClient(request);
            case "offsets" -> offsets(request);
            case "search offset" -> client.searchOffset(Messages.queue(request), request.longNumber("timestamp"));
            case "view" -> Messages.of(client.viewMessage(request.text("topic"), request.text("id")));
            case "query" -> query(request);
            case "query unique key" -> Messages.of(adminImpl().queryMessageByUniqKey(
                request.text("topic"), request.text("key")));
            case "consume stats" -> consumeStats(request.text("group"));
            case "running info" -> runningInfo(request);
            default -> throw new IllegalArgumentException(what);
        };
    }

    /** How many queues a topic has to write to at each broker; nothing while nobody knows of it. */
    private Fields queues(String topic) throws Exception {
        Fields queues = new Fields();
        try {
            admin.examineTopicRouteInfo(topic).getQueueDatas().forEach(
                each -> queues.put(each.getBrokerName(), each.getWriteQueueNums()));
        } catch (MQClientException e) {
            if (e.getResponseCode() != TOPIC_NOT_EXIST) {
                throw e;
            }
        }
        return queues;
    }

    /** Has a RocketMQ broker register; 5.5 often starts before it has found its name server, and waits. */
    private boolean remind(String address) throws Exception {
        Properties unchanged = new Properties();
        unchanged.setProperty("brokerPermission", "6"); // whenever it is told this, it registers
        try {
            admin.updateBrokerConfig(address, unchanged);
            return true;
        } catch (RemotingException e) {
            return false; // it does not listen yet
        }
    }

    private boolean createTopic(Fields request) throws Exception {
        int queues = request.number("queues");
        TopicConfig config = new TopicConfig(request.text("topic"));
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        admin.createAndUpdateTopicConfig(request.text("address"), config);
        return true;
    }

    /** 5.0 has added attributes behind the number of queues. */
    private boolean createTopicAsClient(Fields request) throws Exception {
        Object[] arguments = {client.getCreateTopicKey(), request.text("topic"), request.number("queues"), Map.of()};
        Method create = Arrays.stream(DefaultMQProducer.class.getMethods())
            .filter(method -> method.getName().equals("createTopic"))
            .filter(method -> {
                Class<?>[] parameters = method.getParameterTypes();
                return parameters.length == 3 || parameters.length == 4 && parameters[3] == Map.class;
            })
            .findFirst().orElseThrow();
        try {
            create.invoke(client, Arrays.copyOf(arguments, create.getParameterCount()));
        } catch (InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
        return true;
    }

    private Fields offsets(Fields request) throws Exception {
        return new Fields()
            .with("min", client.minOffset(Messages.queue(request)))
            .with("max", client.maxOffset(Messages.queue(request)))
            .with("earliest", client.earliestMsgStoreTime(Messages.queue(request)));
    }

    private List<Fields> query(Fields request) throws Exception {
        try {
            return Messages.of(client.queryMessage(
                request.text("topic"), request.text("key"), AT_MOST, request.longNumber("begin"),
                request.longNumber("end")).getMessageList());
        } catch (MQClientException e) {
            if (e.getResponseCode() == NO_MESSAGE) {
                return List.of();
            }
            throw e;
        }
    }

    private MQAdminImpl adminImpl() {
        return client.getDefaultMQProducerImpl().getMqClientFactory().getMQAdminImpl();
    }

    /** How far a group has come, with its retry topic; nothing while the broker knows nothing of it. */
    private List<Fields> consumeStats(String group) throws Exception {
        List<Fields> queues = new ArrayList<>();
        try {
            admin.examineConsumeStats(group).getOffsetTable().forEach((queue, offsets) -> queues.add(new Fields()
                .with("topic", queue.getTopic())
                .with("queueId", queue.getQueueId())
                .with("brokerOffset", offsets.getBrokerOffset())
                .with("consumerOffset", offsets.getConsumerOffset())));
        } catch (MQClientException e) {
            if (!NOTHING_KNOWN_OF_GROUP.contains(e.getResponseCode())) {
                throw e;
            }
        }
        return queues;
    }

    private Fields runningInfo(Fields request) throws Exception {
        var info = admin.getConsumerRunningInfo(request.text("group"), request.text("clientId"), false);
        Fields subscriptions = new Fields();
        info.getSubscriptionSet().forEach(each -> subscriptions.put(each.getTopic(), each.getSubString()));
        List<Fields> queues = new ArrayList<>();
        info.getMqTable().forEach((queue, state) -> queues.add(new Fields()
            .with("topic", queue.getTopic())
            .with("queueId", queue.getQueueId())
            .with("commitOffset", state.getCommitOffset())));
        return new Fields()
            .with("subscriptions", subscriptions)
            .with("queues", queues)
            .with("consumeType", info.getProperties().getProperty("PROP_CONSUME_TYPE"))
            .with("ordered", info.getProperties().getProperty("PROP_CONSUMEORDERLY"));
    }
}
