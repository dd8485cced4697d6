package rocketpoll.vectors;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/** Stored message records, written by the clients' MessageDecoder and by the broker's own store encoder. */
final class Records {
    private static final HexFormat HEX = HexFormat.of();
    private static final int V6 = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG;
    private static final int COMPRESSED = MessageSysFlag.COMPRESSED_FLAG;
    private static final int MAGIC_POSITION = 4;
    private static final int SYS_FLAG_POSITION = 36;

    private final List<Object> records = new ArrayList<>();

    private Records() {
    }

    static List<Object> all() throws Exception {
        Records records = new Records();
        records.flags();
        records.contents();
        records.rawProperties();
        records.longTopic();
        return records.records;
    }

    private void flags() throws Exception {
        for (int host : new int[] {0, MessageSysFlag.BORNHOST_V6_FLAG, MessageSysFlag.STOREHOSTADDRESS_V6_FLAG, V6}) {
            for (int transaction : new int[] {0, 4, 8, 12}) {
                both("flag-" + Integer.toHexString(host | transaction), m -> flag(m, host | transaction));
            }
        }
        both("flag-multi-tags", m -> flag(m, MessageSysFlag.MULTI_TAGS_FLAG));
        both("flag-multi-tags-commit-v6", m -> flag(m, MessageSysFlag.MULTI_TAGS_FLAG | MessageSysFlag.TRANSACTION_COMMIT_TYPE | V6));
        both("flag-need-unwrap", m -> flag(m, MessageSysFlag.NEED_UNWRAP_FLAG));
        both("flag-inner-batch", m -> flag(m, MessageSysFlag.INNER_BATCH_FLAG));
        int[] types = {0, MessageSysFlag.COMPRESSION_LZ4_TYPE, MessageSysFlag.COMPRESSION_ZSTD_TYPE, MessageSysFlag.COMPRESSION_ZLIB_TYPE};
        for (int type : types) {
            both("flag-type-without-compression-" + Integer.toHexString(type), m -> flag(m, type));
            both("compressed-" + Integer.toHexString(type), m -> flag(m, COMPRESSED | type));
            both("compressed-v6-commit-" + Integer.toHexString(type),
                m -> flag(m, COMPRESSED | type | V6 | MessageSysFlag.TRANSACTION_COMMIT_TYPE));
        }
    }

    private void contents() throws Exception {
        both("no-properties", m -> MessageAccessor.setProperties(m, new LinkedHashMap<>()));
        both("tags-only", m -> properties(m, "TAGS", "TagA"));
        both("tags-chinese", m -> properties(m, "TAGS", "\u4e2d\u6587"));
        both("tags-emoji", m -> properties(m, "TAGS", "\ud83d\ude00"));
        both("tags-negative-hash", m -> properties(m, "TAGS", "polygenelubricants"));
        both("tags-several", m -> properties(m, "TAGS", "TagA || TagB"));
        both("keys-only", m -> properties(m, "KEYS", "key1 key2"));
        both("unique-key", m -> properties(m, "UNIQ_KEY", "0A0000010FA0000000000000000B0001", "WAIT", "true", "TAGS", "TagB"));
        both("non-ascii-properties", m -> properties(m, "\u5c5e\u6027", "\u503c \ud83d\ude80", "gr\u00f6\u00dfe", "\u00fc"));
        both("separator-in-value", m -> properties(m, "a", "x\u0001y", "b", "2"));
        both("null-character", m -> properties(m, "a", "x\u0000y"));
        both("many-properties", m -> {
            for (int i = 0; i < 50; i++) {
                m.putUserProperty("property" + i, "value" + i);
            }
        });
        both("transaction-properties", m -> properties(m, "TRAN_MSG", "true", "PGROUP", "producers", "REAL_TOPIC", "T", "REAL_QID", "3"));
        both("retry", m -> {
            m.setTopic("%RETRY%group");
            m.setReconsumeTimes(7);
            properties(m, "RETRY_TOPIC", "T", "ORIGIN_MESSAGE_ID", "AC11000100002A9F0000000000000001", "DELAY", "3");
        });
        both("topic-127", m -> m.setTopic("t".repeat(127)));
        both("topic-non-ascii", m -> m.setTopic("\u4e3b\u9898-\u00fc"));
        both("negative-numbers", m -> {
            m.setFlag(-7);
            m.setQueueId(-1);
            m.setReconsumeTimes(-2);
            m.setPreparedTransactionOffset(-3);
        });
        both("big-offsets", m -> {
            m.setQueueOffset((1L << 33) + 5);
            m.setCommitLogOffset((1L << 41) + 12345);
            m.setPreparedTransactionOffset((1L << 40) + 1);
        });
        both("extreme-numbers", m -> {
            m.setFlag(Integer.MIN_VALUE);
            m.setQueueId(Integer.MAX_VALUE);
            m.setQueueOffset(Long.MAX_VALUE);
            m.setCommitLogOffset(Long.MAX_VALUE);
            m.setBornTimestamp(0);
            m.setStoreTimestamp(Long.MAX_VALUE);
        });
        both("high-ports", m -> {
            m.setBornHost(host(false, "ffffffff", 65535));
            m.setStoreHost(host(false, "7f000001", 0));
        });
        both("body-1", m -> m.setBody(new byte[] {0}));
        both("body-3000", m -> m.setBody(randomBytes(3000)));
        both("body-text", m -> m.setBody("\u6d88\u606f \u00e4\u00f6\u00fc \ud83d\ude00".getBytes(StandardCharsets.UTF_8)));
        both("body-empty", m -> m.setBody(new byte[0]));
    }

    /** Property data that Java itself would not write but has to read; only the store encoder takes it as it is. */
    private void rawProperties() throws Exception {
        String[] texts = {
            "a\u0001b", "a\u0001b\u0002", "a\u00011\u0002a\u00012\u0002", "TAGS\u0001A\u0002TAGS\u0001B", "a\u0001\u0002b\u00012",
            "\u0001x\u0002b\u00012", "x", "a\u0002b\u00012\u0002", "\u0002\u0002a\u00011\u0002\u0002", "abc\u0002d\u00011\u0002",
            "a\u0001b\u0001c\u0002d\u0001e", "\u0001\u0001\u0001\u0002a\u00011", "TAGS\u0001\u0002KEYS\u0001k\u0002"};
        for (int i = 0; i < texts.length; i++) {
            String text = texts[i];
            store("raw-properties-" + i, m -> { }, text);
        }
    }

    /** Records with a two-byte topic length; only the store of RocketMQ 5 writes them. */
    private void longTopic() throws Exception {
        if (Beans.find("MessageVersion").isEmpty()) {
            return;
        }
        for (int length : new int[] {128, 200, 255}) {
            store("v2-topic-" + length, m -> m.setTopic("%RETRY%" + "g".repeat(length - 7)), null);
            store("v2-topic-" + length + "-v6-compressed", m -> {
                m.setTopic("%RETRY%" + "g".repeat(length - 7));
                flag(m, V6 | COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD_TYPE);
            }, null);
        }
    }

    private void both(String name, Consumer<MessageExt> change) throws Exception {
        MessageExt message = message(MessageExt.class, change);
        add("decoder-" + name, MessageDecoder.encode(message, false));
        store(name, change, null);
    }

    private void store(String name, Consumer<MessageExt> change, String rawProperties) throws Exception {
        MessageExt message = message(Beans.get("MessageExtBrokerInner").asSubclass(MessageExt.class), change);
        String text = rawProperties == null ? MessageDecoder.messageProperties2String(message.getProperties()) : rawProperties;
        Beans.call(message.getClass(), message, "setPropertiesString", text);
        if (message.getTopic().length() > Byte.MAX_VALUE) {
            Object[] versions = Beans.get("MessageVersion").getEnumConstants();
            Beans.call(message.getClass(), message, "setVersion", versions[1]);
        }
        add("store-" + name, storeEncode(message));
    }

    /** The broker's encoder leaves three fields to the append; they are filled in here as CommitLog.doAppend does it. */
    private static byte[] storeEncode(MessageExt message) throws Exception {
        Object encoder = storeEncoder();
        Object failure = Beans.call(encoder.getClass(), encoder, "encode", message);
        if (failure != null) {
            throw new IllegalStateException("store encoder: " + failure);
        }
        ByteBuffer buffer = (ByteBuffer) Beans.call(encoder.getClass(), encoder, "getEncoderBuffer");
        byte[] record = new byte[buffer.getInt(0)];
        buffer.get(0, record);
        int transaction = MessageSysFlag.getTransactionValue(message.getSysFlag());
        boolean consumable = transaction == MessageSysFlag.TRANSACTION_NOT_TYPE || transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE;
        ByteBuffer.wrap(record)
            .putLong(20, consumable ? message.getQueueOffset() : 0)
            .putLong(28, message.getCommitLogOffset())
            .putLong(48 + message.getBornHostBytes().limit(), message.getStoreTimestamp());
        return record;
    }

    /** A class of CommitLog's in 4.9, one of its own in 5. */
    private static Object storeEncoder() throws ReflectiveOperationException {
        int maxBodySize = 1 << 16;
        var inner = Beans.find("CommitLog$MessageExtEncoder");
        var constructor = inner.isPresent()
            ? inner.get().getDeclaredConstructor(int.class)
            : Beans.get("MessageExtEncoder").getDeclaredConstructor(Beans.get("MessageStoreConfig"));
        constructor.setAccessible(true);
        return constructor.newInstance(inner.isPresent() ? maxBodySize : Beans.create(Beans.get("MessageStoreConfig")));
    }

    private static MessageExt message(Class<? extends MessageExt> type, Consumer<MessageExt> change) throws Exception {
        MessageExt message = (MessageExt) Beans.create(type);
        message.setTopic("TopicTest");
        message.setBody("hello hello hello hello".getBytes(StandardCharsets.UTF_8));
        message.setQueueId(3);
        message.setFlag(42);
        message.setQueueOffset(7);
        message.setCommitLogOffset(1234567);
        message.setBornTimestamp(1700000000000L);
        message.setStoreTimestamp(1700000000001L);
        message.setReconsumeTimes(1);
        message.setPreparedTransactionOffset(99);
        message.setBornHost(host(false, "0a000001", 5000));
        message.setStoreHost(host(false, "0a000002", 10911));
        properties(message, "KEYS", "k1", "TAGS", "TagA");
        change.accept(message);
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        return message;
    }

    /** Sets the flag and what follows from it: the hosts' kind, the compressed body. */
    private static void flag(MessageExt message, int sysFlag) {
        message.setSysFlag(sysFlag);
        if ((sysFlag & MessageSysFlag.BORNHOST_V6_FLAG) != 0) {
            message.setBornHost(host(true, "20010db8000000000000000000000001", 5000));
        }
        if ((sysFlag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG) != 0) {
            message.setStoreHost(host(true, "fe80000000000000021122fffe334455", 10911));
        }
        if ((sysFlag & COMPRESSED) != 0) {
            try {
                byte[] plain = "compressible ".repeat(40).getBytes(StandardCharsets.UTF_8);
                message.setBody(CompressorFactory.getCompressor(MessageSysFlag.getCompressionType(sysFlag)).compress(plain, 5));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    private static void properties(MessageExt message, String... namesAndValues) {
        Map<String, String> properties = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            properties.put(namesAndValues[i], namesAndValues[i + 1]);
        }
        MessageAccessor.setProperties(message, properties);
    }

    private static SocketAddress host(boolean v6, String address, int port) {
        try {
            return new InetSocketAddress(InetAddress.getByAddress(HEX.parseHex(address)), port);
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException(e);
        }
    }

    static byte[] randomBytes(int size) {
        byte[] bytes = new byte[size];
        new Random(20240229).nextBytes(bytes);
        return bytes;
    }

    private void add(String name, byte[] record) {
        records.add(Json.object("name", name, "record", HEX.formatHex(record), "fields", fields(record)));
    }

    /** What Java reads from one record, with the body as stored and, if it is compressed, also as decompressed. */
    static Map<String, Object> fields(byte[] record) {
        MessageExt message = decode(record, false);
        ByteBuffer raw = ByteBuffer.wrap(record);
        int sysFlag = raw.getInt(SYS_FLAG_POSITION);
        Map<String, String> properties = message.getProperties() == null ? Map.of() : message.getProperties();
        Map<String, Object> fields = Json.object(
            "totalSize", message.getStoreSize(),
            "magic", raw.getInt(MAGIC_POSITION),
            "bodyCrc", message.getBodyCRC(),
            "queueId", message.getQueueId(),
            "flag", message.getFlag(),
            "queueOffset", message.getQueueOffset(),
            "physicalOffset", message.getCommitLogOffset(),
            "sysFlag", sysFlag,
            "bornTimestamp", message.getBornTimestamp(),
            "bornHost", text(message.getBornHost()),
            "bornHostBytes", HEX.formatHex(message.getBornHostBytes().array()),
            "storeTimestamp", message.getStoreTimestamp(),
            "storeHost", text(message.getStoreHost()),
            "storeHostBytes", HEX.formatHex(message.getStoreHostBytes().array()),
            "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(),
            "body", message.getBody() == null ? null : HEX.formatHex(message.getBody()),
            "topic", message.getTopic(),
            "propertiesData", HEX.formatHex(propertiesData(record, message)),
            "properties", new TreeMap<>(properties),
            "tagsCode", tagsCode(properties.get("TAGS")),
            "msgId", message.getMsgId(),
            "offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        if ((sysFlag & COMPRESSED) != 0) {
            fields.put("bodyPlain", HEX.formatHex(decode(record, true).getBody()));
        }
        return fields;
    }

    private static MessageExt decode(byte[] record, boolean decompress) {
        ByteBuffer buffer = ByteBuffer.wrap(record);
        MessageExt message = MessageDecoder.decode(buffer, true, decompress, true);
        if (message == null) {
            throw new IllegalArgumentException("MessageDecoder cannot decode the record");
        }
        if (buffer.hasRemaining()) {
            throw new IllegalArgumentException(buffer.remaining() + " bytes left over after the record");
        }
        return message;
    }

    private static byte[] propertiesData(byte[] record, MessageExt message) {
        int bodyLength = message.getBody() == null ? 0 : message.getBody().length;
        int topicLength = message.getTopic().getBytes(StandardCharsets.UTF_8).length;
        int topicLengthSize = ByteBuffer.wrap(record).getInt(MAGIC_POSITION) == MessageDecoder.MESSAGE_MAGIC_CODE ? 1 : 2;
        int hosts = message.getBornHostBytes().limit() + message.getStoreHostBytes().limit();
        int position = 72 + hosts + bodyLength + topicLengthSize + topicLength;
        byte[] data = new byte[ByteBuffer.wrap(record).getShort(position)];
        System.arraycopy(record, position + 2, data, 0, data.length);
        return data;
    }

    private static String text(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        return address.getAddress().getHostAddress() + ":" + address.getPort();
    }

    private static long tagsCode(String tags) {
        try {
            return (long) Beans.call(Beans.get("MessageExtBrokerInner"), null, "tagsString2tagsCode", TopicFilterType.SINGLE_TAG, tags);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
