package rocketpoll.vectors;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** The settings of a client that nobody has set: those that are numbers, truths or names of an enum. */
final class Defaults {
    private static final Set<String> OF_THIS_MACHINE = Set.of("clientCallbackExecutorThreads"); // as many as it has cores

    private Defaults() {
    }

    static List<Object> all() throws IllegalAccessException {
        List<Object> lines = new ArrayList<>();
        for (Object client : List.of(new DefaultLitePullConsumer("g"), new DefaultMQPushConsumer("g"), new DefaultMQProducer("g"))) {
            lines.add(Json.object("kind", client.getClass().getSimpleName(), "settings", settings(client)));
        }
        return lines;
    }

    private static TreeMap<String, Object> settings(Object client) throws IllegalAccessException {
        TreeMap<String, Object> settings = new TreeMap<>();
        for (Class<?> type = client.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || OF_THIS_MACHINE.contains(field.getName())) {
                    continue;
                }
                field.setAccessible(true);
                Object value = field.get(client);
                if (value instanceof Number || value instanceof Boolean) {
                    settings.put(field.getName(), value);
                } else if (value instanceof Enum<?> constant) {
                    settings.put(field.getName(), constant.name());
                }
            }
        }
        return settings;
    }
}
