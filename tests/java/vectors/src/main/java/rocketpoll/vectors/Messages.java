package rocketpoll.vectors;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;

/** Client batch bodies and property texts. */
final class Messages {
    private static final List<String> TEXTS = List.of(
        "", "a", "\u0001", "\u0002", "\u0001\u0002", "\u0002\u0001", "a\u0001", "a\u0002", "a\u0001\u0002", "a\u0001b",
        "a\u0001b\u0002", "=\u0001=\u0001=\u0002", "a\u00011\u0002b\u00012", "a\u00011\u0002b\u00012\u0002",
        "a\u00011\u0002a\u00012\u0002", "a\u00011\u0002\u0002b\u00012", "\u0002\u0002\u0002", "\u0001\u0001\u0001",
        "\u0001b\u0002a\u00011", "ab\u0002c\u00011", "abc\u0002d\u00011\u0002", "abcd\u0002\u0001x\u0002e\u00011",
        "a\u0001\u0002b\u00012", "a\u0001 \u0002b\u00012", " \u0001 ", "a\u0001b\u0001\u0002", "a\u0001b\u0001",
        "\u0001\u0001a\u0002", "\u952e\u0001\u503c\u0002", "\ud83d\ude00\u0001\ud83d\ude80", "k\u0001v=w&x\u0002",
        "KEYS\u0001a b c\u0002TAGS\u0001T\u0002WAIT\u0001true", "k\u0001line\nbreak\u0002", "k\u0001nul\u0000\u0002",
        "a\u00011\u0002b", "a\u00011\u0002b\u0001", "TAGS\u0001\u0002TAGS\u0001x");

    private static final List<String[]> ENTRIES = List.of(
        new String[] {},
        new String[] {"a", "1"},
        new String[] {"KEYS", "k1", "WAIT", "true", "TAGS", "TagA"},
        new String[] {"z", "1", "a", "2", "m", "3"},
        new String[] {"\u5c5e\u6027", "\u503c", "emoji", "\ud83d\ude00"},
        new String[] {"empty", "", "b", "2"},
        new String[] {"a", "1", "null", null},
        new String[] {"null", null},
        new String[] {"separator", "x\u0001y\u0002z", "b", "2"},
        new String[] {"", "no name"});

    private Messages() {
    }

    static List<Object> batches() throws Exception {
        List<Object> lines = new ArrayList<>();
        lines.add(batch(message(9, "one", "KEYS", "k1", "WAIT", "true", "TAGS", "TagA"), message(0, "two", "WAIT", "true")));
        lines.add(batch(message(-1, "x")));
        lines.add(batch(message(1, "\u6d88\u606f", "\u5c5e\u6027", "\u503c \ud83d\ude80"), message(2, "\u00fc", "a", "1"), message(3, "z")));
        lines.add(batch(message(0, "", "a", "1"), message(0, "after an empty body", "a", "2")));
        lines.add(batch(message(Integer.MIN_VALUE, "y".repeat(1000), "long", "v".repeat(500))));
        Message[] many = new Message[20];
        for (int i = 0; i < many.length; i++) {
            many[i] = message(i, "body " + i, "UNIQ_KEY", String.format("0A0000010FA0000000000000000B%04X", i), "WAIT", "true");
        }
        lines.add(batch(many));
        lines.add(batch());
        return lines;
    }

    private static Object batch(Message... messages) throws Exception {
        byte[] body = MessageDecoder.encodeMessages(List.of(messages));
        return Json.object("body", HexFormat.of().formatHex(body), "messages", decodeBatch(body));
    }

    private static Message message(int flag, String body, String... properties) {
        Message message = new Message();
        message.setFlag(flag);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        MessageAccessor.setProperties(message, map(properties));
        return message;
    }

    static List<Object> decodeBatch(byte[] body) throws Exception {
        List<Object> values = new ArrayList<>();
        ByteBuffer entries = ByteBuffer.wrap(body);
        for (Message message : MessageDecoder.decodeMessages(ByteBuffer.wrap(body))) {
            int size = entries.getInt(entries.position());
            int propertiesPosition = 20 + message.getBody().length + 2;
            String text = new String(body, entries.position() + propertiesPosition, size - propertiesPosition, StandardCharsets.UTF_8);
            entries.position(entries.position() + size);
            values.add(Json.object(
                "flag", message.getFlag(),
                "body", HexFormat.of().formatHex(message.getBody()),
                "propertiesData", text,
                "properties", new TreeMap<>(message.getProperties())));
        }
        return values;
    }

    static List<Object> properties() {
        List<Object> lines = new ArrayList<>();
        for (String text : TEXTS) {
            lines.add(Json.object("text", text, "properties", new TreeMap<>(MessageDecoder.string2messageProperties(text))));
        }
        for (String[] entries : ENTRIES) {
            List<Object> pairs = new ArrayList<>();
            map(entries).forEach((name, value) -> pairs.add(Arrays.asList(name, value)));
            String encoded = MessageDecoder.messageProperties2String(map(entries));
            lines.add(Json.object(
                "entries", pairs,
                "encoded", encoded,
                "properties", new TreeMap<>(MessageDecoder.string2messageProperties(encoded))));
        }
        return lines;
    }

    private static Map<String, String> map(String... namesAndValues) {
        Map<String, String> map = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            map.put(namesAndValues[i], namesAndValues[i + 1]);
        }
        return map;
    }
}
