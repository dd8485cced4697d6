package rocketpoll.vectors;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * Makes objects of any RocketMQ data class with a value in every field that depends only on the field's name and the
 * element's place, so that the vectors are the same at every run.
 */
final class Filler {
    /** Header texts and numbers that Java checks or parses; a made-up value would be refused. */
    private static final Map<String, Object> SANE = Map.of(
        "properties", "KEYS\u0001k1 k2\u0002TAGS\u0001TagA\u0002",
        "i", "KEYS\u0001k1 k2\u0002TAGS\u0001\u4e2d\u6587\u0002",
        "topicFilterType", "SINGLE_TAG",
        "commitOrRollback", 8);

    private static final double[] DOUBLES = {0.1, 12.0, 1.5E10, 1.25E-5, 12345678.9, 123456.0, -0.75};

    private final int elements;
    private final Map<String, Object> pool;
    private int shared;

    private Filler(int elements, boolean share) {
        this.elements = elements;
        this.pool = share ? new HashMap<>() : null;
    }

    /** Collections and maps get one element: the encoding has only one possible order. */
    static Filler single() {
        return new Filler(1, false);
    }

    /** Collections and maps get two elements. */
    static Filler twofold() {
        return new Filler(2, false);
    }

    /** Like twofold, but beans of one class at the same index of their containers are one and the same instance. */
    static Filler sharing() {
        return new Filler(2, true);
    }

    /** How often an instance was used again; 0 means that the object came out as with twofold. */
    int shared() {
        return shared;
    }

    Object bean(Class<?> type) {
        return bean(type, "", field -> true);
    }

    Object bean(Class<?> type, Predicate<Field> wanted) {
        return bean(type, "", wanted);
    }

    private Object bean(Class<?> type, String path, Predicate<Field> wanted) {
        String key = type.getName() + path;
        if (pool != null && pool.containsKey(key)) {
            shared++;
            return pool.get(key);
        }
        Object bean = Beans.create(type);
        for (Field field : Beans.fields(type)) {
            if (!Beans.isRoutingExtra(field) && wanted.test(field)) {
                Beans.set(field, bean, value(field.getGenericType(), field.getName(), path));
            }
        }
        if (pool != null) {
            pool.put(key, bean);
        }
        return bean;
    }

    private Object value(Type type, String name, String path) {
        if (type instanceof ParameterizedType generic) {
            Class<?> raw = (Class<?>) generic.getRawType();
            Type[] arguments = generic.getActualTypeArguments();
            return Map.class.isAssignableFrom(raw)
                ? map(raw, arguments[0], arguments[1], name, path)
                : collection(raw, arguments[0], name, path);
        }
        Class<?> raw = (Class<?>) type;
        Object sane = SANE.get(name);
        if (sane != null && raw.isInstance(sane)) {
            return sane;
        } else if (raw == String.class) {
            return text(name, path);
        } else if (raw == int.class || raw == Integer.class) {
            return number(name, path);
        } else if (raw == long.class || raw == Long.class) {
            return bigNumber(name, path);
        } else if (raw == double.class || raw == Double.class) {
            return DOUBLES[Math.floorMod((name + path).hashCode(), DOUBLES.length)];
        } else if (raw == boolean.class || raw == Boolean.class) {
            return true;
        } else if (raw == AtomicLong.class) {
            return new AtomicLong(bigNumber(name, path));
        } else if (raw.isEnum()) {
            Object[] constants = raw.getEnumConstants();
            return constants[constants.length - 1];
        } else if (raw == Properties.class) {
            return map(raw, String.class, String.class, name, path);
        } else if (raw.isArray()) {
            Object array = Array.newInstance(raw.getComponentType(), elements);
            for (int i = 0; i < elements; i++) {
                Array.set(array, i, value(raw.getComponentType(), name, path(path, i)));
            }
            return array;
        }
        return bean(raw, path, field -> true);
    }

    /** Linked kinds, because several beans have no hashCode of their own and would come out in a random order. */
    private Collection<Object> collection(Class<?> raw, Type element, String name, String path) {
        Collection<Object> collection = pick(raw, new ArrayList<>(), new LinkedHashSet<>(), new TreeSet<>());
        for (int i = 0; i < elements; i++) {
            collection.add(value(element, name, path(path, i)));
        }
        return collection;
    }

    private Map<Object, Object> map(Class<?> raw, Type key, Type value, String name, String path) {
        Map<Object, Object> map = pick(raw, new LinkedHashMap<>(), new ConcurrentHashMap<>(), new TreeMap<>(), new Properties());
        for (int i = 0; i < elements; i++) {
            map.put(value(key, name + "Key", path(path, i)), value(value, name, path(path, i)));
        }
        return map;
    }

    @SafeVarargs
    private static <T> T pick(Class<?> raw, T... candidates) {
        return Stream.of(candidates).filter(raw::isInstance).findFirst()
            .orElseThrow(() -> new IllegalArgumentException("no implementation of " + raw));
    }

    private String path(String path, int index) {
        String step = elements == 1 ? "" : "-" + (index + 1);
        return pool == null ? path + step : step;
    }

    private static String text(String name, String path) {
        String text = name + "-value" + path;
        return name.hashCode() % 4 == 0 ? text + "-\u503c\u00e9\ud83d\ude00" : text;
    }

    private static int number(String name, String path) {
        int hash = (name + path).hashCode();
        return hash % 3 == 0 ? -Math.floorMod(hash, 100_000) : Math.floorMod(hash, 100_000);
    }

    private static long bigNumber(String name, String path) {
        long number = number(name, path);
        return number < 0 ? number - (1L << 33) : number + (1L << 33);
    }
}
