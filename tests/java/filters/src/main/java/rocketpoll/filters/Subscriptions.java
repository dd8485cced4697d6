package rocketpoll.filters;

import java.lang.reflect.InvocationTargetException;
import java.util.Map;

/** A subscription as RocketMQ's FilterAPI builds it. That class has moved between 4.9 and 5, hence the reflection. */
final class Subscriptions {
    private Subscriptions() {
    }

    static Object build(Map<?, ?> request) throws Exception {
        try {
            return filterApi()
                .getMethod("build", String.class, String.class, String.class)
                .invoke(null, request.get("topic"), request.get("text"), request.get("type"));
        } catch (InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }

    private static Class<?> filterApi() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.remoting.protocol.filter.FilterAPI");
        } catch (ClassNotFoundException e) {
            return Class.forName("org.apache.rocketmq.common.filter.FilterAPI");
        }
    }
}
