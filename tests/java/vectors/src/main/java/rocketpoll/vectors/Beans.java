package rocketpoll.vectors;

import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import org.apache.rocketmq.remoting.annotation.CFNotNull;

/** Reflection on RocketMQ's data classes, which live in other packages in 4.9 than in 5. */
final class Beans {
    private static final List<String> PACKAGES = List.of(
        "org.apache.rocketmq.common.protocol.header.",
        "org.apache.rocketmq.common.protocol.header.namesrv.",
        "org.apache.rocketmq.common.protocol.body.",
        "org.apache.rocketmq.common.protocol.heartbeat.",
        "org.apache.rocketmq.common.protocol.route.",
        "org.apache.rocketmq.common.subscription.",
        "org.apache.rocketmq.common.admin.",
        "org.apache.rocketmq.common.message.",
        "org.apache.rocketmq.common.",
        "org.apache.rocketmq.remoting.protocol.header.",
        "org.apache.rocketmq.remoting.protocol.header.namesrv.",
        "org.apache.rocketmq.remoting.protocol.body.",
        "org.apache.rocketmq.remoting.protocol.heartbeat.",
        "org.apache.rocketmq.remoting.protocol.route.",
        "org.apache.rocketmq.remoting.protocol.subscription.",
        "org.apache.rocketmq.remoting.protocol.admin.",
        "org.apache.rocketmq.remoting.protocol.",
        "org.apache.rocketmq.store.config.",
        "org.apache.rocketmq.store.");

    private Beans() {
    }

    /** The class of that simple name in this version of RocketMQ, if it has one. */
    static Optional<Class<?>> find(String simpleName) {
        for (String prefix : PACKAGES) {
            try {
                return Optional.of(Class.forName(prefix + simpleName));
            } catch (ClassNotFoundException e) {
                // not in this package
            }
        }
        return Optional.empty();
    }

    static Class<?> get(String simpleName) {
        return find(simpleName).orElseThrow(() -> new IllegalArgumentException("no class " + simpleName));
    }

    /**
     * The fields that hold data, those of the superclasses first. Final ones hold none (a Random in BrokerData);
     * filterClassSource of SubscriptionData is marked as never to be written.
     */
    static List<Field> fields(Class<?> type) {
        List<Field> fields = new ArrayList<>();
        if (type.getSuperclass() != null) {
            fields.addAll(fields(type.getSuperclass()));
        }
        for (Field field : type.getDeclaredFields()) {
            int modifiers = field.getModifiers();
            boolean data = !Modifier.isStatic(modifiers) && !Modifier.isTransient(modifiers) && !Modifier.isFinal(modifiers);
            if (data && !field.getName().equals("filterClassSource")) {
                field.setAccessible(true);
                fields.add(field);
            }
        }
        return fields;
    }

    /** Fields that requests inherit for proxies (bname, ns, nsd, oway, lo): left null here. */
    static boolean isRoutingExtra(Field field) {
        return field.getDeclaringClass().getPackageName().endsWith(".rpc");
    }

    static boolean isRequired(Field field) {
        return field.getType().isPrimitive() || field.isAnnotationPresent(CFNotNull.class);
    }

    /** By the constructor with the fewest parameters, since some classes have none without; those get null, 0 or false. */
    static Object create(Class<?> type) {
        Constructor<?> constructor = Arrays.stream(type.getDeclaredConstructors())
            .min(Comparator.comparingInt(Constructor::getParameterCount))
            .orElseThrow(() -> new IllegalArgumentException("no constructor in " + type));
        Object[] arguments = Arrays.stream(constructor.getParameterTypes())
            .map(parameter -> Array.get(Array.newInstance(parameter, 1), 0)).toArray();
        constructor.setAccessible(true);
        try {
            return constructor.newInstance(arguments);
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException("cannot create " + type, e);
        }
    }

    static Object get(Field field, Object bean) {
        try {
            return field.get(bean);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    static void set(Field field, Object bean, Object value) {
        try {
            field.set(bean, value);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Calls the method of that name and number of parameters, also when it is not public; a null target means static. */
    static Object call(Class<?> type, Object target, String name, Object... arguments) throws Exception {
        for (Method method : type.getDeclaredMethods()) {
            if (method.getName().equals(name) && accepts(method, arguments)) {
                method.setAccessible(true);
                try {
                    return method.invoke(target, arguments);
                } catch (InvocationTargetException e) {
                    throw e.getCause() instanceof Exception cause ? cause : e;
                }
            }
        }
        throw new NoSuchMethodException(type + "." + name);
    }

    private static boolean accepts(Method method, Object[] arguments) {
        Class<?>[] types = method.getParameterTypes();
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            if (!types[i].isPrimitive() && arguments[i] != null && !types[i].isInstance(arguments[i])) {
                return false;
            }
        }
        return true;
    }
}
