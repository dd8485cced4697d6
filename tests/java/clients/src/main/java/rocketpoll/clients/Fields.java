package rocketpoll.clients;

import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** A JSON object. Bodies are text with one character for each byte. */
final class Fields extends LinkedHashMap<String, Object> {
    private static final long serialVersionUID = 1L;
    private static final Charset ONE_FOR_EACH_BYTE = StandardCharsets.ISO_8859_1;

    static Fields parse(String line) {
        return of(RemotingSerializable.fromJson(line, Map.class));
    }

    static Fields of(Object object) {
        Fields fields = new Fields();
        ((Map<?, ?>) object).forEach((name, value) -> fields.put((String) name, value));
        return fields;
    }

    static String body(byte[] bytes) {
        return new String(bytes, ONE_FOR_EACH_BYTE);
    }

    Fields with(String name, Object value) {
        put(name, value);
        return this;
    }

    String toJson() {
        return RemotingSerializable.toJson(this, false);
    }

    String text(String name) {
        return (String) required(name);
    }

    String text(String name, String otherwise) {
        return (String) getOrDefault(name, otherwise);
    }

    byte[] body(String name) {
        return text(name).getBytes(ONE_FOR_EACH_BYTE);
    }

    int number(String name) {
        return ((Number) required(name)).intValue();
    }

    int number(String name, int otherwise) {
        return ((Number) getOrDefault(name, otherwise)).intValue();
    }

    long longNumber(String name) {
        return ((Number) required(name)).longValue();
    }

    boolean flag(String name) {
        return (boolean) getOrDefault(name, false);
    }

    Fields object(String name) {
        return of(getOrDefault(name, Map.of()));
    }

    List<Fields> objects(String name) {
        return ((List<?>) required(name)).stream().map(Fields::of).toList();
    }

    List<Integer> numbers(String name) {
        return ((List<?>) required(name)).stream().map(each -> ((Number) each).intValue()).toList();
    }

    String[] texts(String name) {
        return Arrays.stream(((List<?>) required(name)).toArray()).toArray(String[]::new);
    }

    private Object required(String name) {
        Object value = get(name);
        if (value == null) {
            throw new IllegalArgumentException("there is no " + name + " in " + this);
        }
        return value;
    }
}
