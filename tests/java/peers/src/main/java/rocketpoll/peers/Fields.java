package rocketpoll.peers;

import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** A JSON object. Bodies are in hexadecimal. */
final class Fields extends LinkedHashMap<String, Object> {
    private static final long serialVersionUID = 1L;

    /** A body is inflated when we get it; 5.5 takes the flag away then, 4.9 does not. */
    private static final int INFLATED = MessageSysFlag.COMPRESSED_FLAG;

    static Fields parse(String line) {
        return of(RemotingSerializable.fromJson(line, Map.class));
    }

    private static Fields of(Object object) {
        Fields fields = new Fields();
        ((Map<?, ?>) object).forEach((name, value) -> fields.put((String) name, value));
        return fields;
    }

    String text(String name) {
        return (String) get(name);
    }

    long number(String name) {
        return ((Number) get(name)).longValue();
    }

    byte[] bytes(String name) {
        return HexFormat.of().parseHex(text(name));
    }

    Fields object(String name) {
        return of(get(name));
    }

    List<Fields> objects(String name) {
        return ((List<?>) get(name)).stream().map(Fields::of).toList();
    }

    static List<Fields> of(PullResult result) {
        return of(result.getMsgFoundList());
    }

    static List<Fields> of(List<MessageExt> messages) {
        List<Fields> list = new ArrayList<>();
        messages.forEach(message -> list.add(of(message)));
        return list;
    }

    /** All that a client gets to know of a message. */
    static Fields of(MessageExt message) {
        Map<String, String> properties = new LinkedHashMap<>(message.getProperties());
        properties.remove("MIN_OFFSET"); // which the client adds to what it has pulled
        properties.remove("MAX_OFFSET");
        Fields fields = new Fields();
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("physicalOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("body", HexFormat.of().formatHex(message.getBody()));
        fields.put("bodyCrc", message.getBodyCRC());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("properties", properties);
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag() & ~INFLATED);
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", String.valueOf(message.getBornHost()));
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", String.valueOf(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("messageId", message.getMsgId());
        fields.put("offsetMessageId", offsetMessageId(message));
        return fields;
    }

    private static String offsetMessageId(MessageExt message) {
        return message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId();
    }
}
