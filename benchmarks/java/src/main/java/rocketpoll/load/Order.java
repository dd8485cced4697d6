package rocketpoll.load;

import java.util.Map;

/** What is to be done, as a JSON object says it. */
record Order(Map<?, ?> fields) {
    String text(String name) {
        return (String) required(name);
    }

    int number(String name) {
        return ((Number) required(name)).intValue();
    }

    /** Whether this is so; what is not said is not. */
    boolean flag(String name) {
        return Boolean.TRUE.equals(fields.get(name));
    }

    long nanoseconds() {
        return (long) (((Number) required("seconds")).doubleValue() * 1e9);
    }

    private Object required(String name) {
        Object value = fields.get(name);
        if (value == null) {
            throw new IllegalArgumentException("there is no " + name + " in " + fields);
        }
        return value;
    }
}
