package rocketpoll.vectors;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** Turns RocketMQ objects into neutral values for {@link Json}, by their fields and without any JSON library's opinion. */
final class Dump {
    private Dump() {
    }

    /** Fields that are null are left out. */
    static Object of(Object value) {
        return of(value, null);
    }

    /** A command header: all its fields, also those that are null, but not the empty ones inherited for proxies. */
    static Map<String, Object> header(Object header) {
        Map<String, Object> object = Json.object();
        for (Field field : Beans.fields(header.getClass())) {
            Object value = Beans.get(field, header);
            if (value != null || !Beans.isRoutingExtra(field)) {
                object.put(field.getName(), of(value));
            }
        }
        return object;
    }

    /** The declared type tells what an empty map would have had as keys. */
    private static Object of(Object value, Type declared) {
        if (value == null || value instanceof String || value instanceof Boolean) {
            return value;
        } else if (value instanceof Double number && !Double.isFinite(number)) {
            return number.toString();
        } else if (value instanceof Integer || value instanceof Long || value instanceof Double) {
            return value;
        } else if (value instanceof Number number) {
            return number.longValue();
        } else if (value instanceof Enum<?> constant) {
            return constant.name();
        } else if (value instanceof Map<?, ?> map) {
            return map(map, argument(declared, 0), argument(declared, 1));
        } else if (value instanceof Collection<?> collection) {
            List<Object> list = new ArrayList<>();
            collection.forEach(element -> list.add(of(element, argument(declared, 0))));
            if (value instanceof Set) {
                list.sort(Comparator.comparing(Json::print));
            }
            return list;
        } else if (value.getClass().isArray()) {
            List<Object> list = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                list.add(of(Array.get(value, i)));
            }
            return list;
        }
        return bean(value);
    }

    private static Object bean(Object bean) {
        if (!bean.getClass().getName().startsWith("org.apache.rocketmq.")) {
            throw new IllegalArgumentException("unexpected " + bean.getClass());
        }
        Map<String, Object> object = Json.object();
        for (Field field : Beans.fields(bean.getClass())) {
            Object value = Beans.get(field, bean);
            if (value != null) {
                // JSON libraries go by the getter: isWithoutSub of HeartbeatData is withoutSub on the wire.
                String name = field.getName().equals("isWithoutSub") ? "withoutSub" : field.getName();
                object.put(name, of(value, field.getGenericType()));
            }
        }
        return object;
    }

    private static Object map(Map<?, ?> map, Type key, Type value) {
        boolean plainKeys = map.isEmpty() ? key == null || isPlain(key) : map.keySet().stream().allMatch(k -> isPlain(k.getClass()));
        if (plainKeys) {
            Map<String, Object> object = new TreeMap<>();
            map.forEach((k, v) -> object.put(k.toString(), of(v, value)));
            return object;
        }
        List<Object> pairs = new ArrayList<>();
        map.forEach((k, v) -> pairs.add(Json.object("key", of(k, key), "value", of(v, value))));
        pairs.sort(Comparator.comparing(Json::print));
        return pairs;
    }

    private static boolean isPlain(Type type) {
        return type == String.class || type == Integer.class || type == Long.class;
    }

    private static Type argument(Type declared, int index) {
        return declared instanceof ParameterizedType generic ? generic.getActualTypeArguments()[index] : null;
    }
}
