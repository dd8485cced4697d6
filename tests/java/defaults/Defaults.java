import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Prints the members of enums, the constants and the default values of the classes that its arguments name, as JSON. */
public final class Defaults {
    private Defaults() {
    }

    public static void main(String[] names) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        for (String name : names) {
            Class<?> type = Class.forName(name);
            Map<String, Object> values = new LinkedHashMap<>();
            if (type.isEnum()) {
                List<String> members = new ArrayList<>();
                for (Object member : type.getEnumConstants()) {
                    members.add(((Enum<?>) member).name());
                }
                values.put("members", members);
            } else {
                Object instance = create(type);
                for (Field field : type.getDeclaredFields()) {
                    boolean isStatic = Modifier.isStatic(field.getModifiers());
                    if ((isStatic || instance != null) && isPlain(field.getType())) {
                        field.setAccessible(true);
                        values.put(field.getName(), String.valueOf(field.get(isStatic ? null : instance)));
                    }
                }
            }
            found.put(type.getSimpleName(), values);
        }
        System.out.println("defaults " + RemotingSerializable.toJson(found, false));
        System.exit(0); // clients may have started threads
    }

    private static boolean isPlain(Class<?> type) {
        return type.isPrimitive() || type == String.class || type.isEnum();
    }

    /** Return an object as a program would first have it; null if its making needs others. */
    private static Object create(Class<?> type) {
        for (Constructor<?> constructor : type.getDeclaredConstructors()) {
            try {
                constructor.setAccessible(true);
                if (constructor.getParameterCount() == 0) {
                    return constructor.newInstance();
                }
                if (constructor.getParameterCount() == 1 && constructor.getParameterTypes()[0] == String.class) {
                    return constructor.newInstance("defaults");
                }
            } catch (ReflectiveOperationException | RuntimeException unfit) {
                continue;
            }
        }
        for (Constructor<?> constructor : type.getDeclaredConstructors()) {
            try {
                constructor.setAccessible(true);
                Object[] given = new Object[constructor.getParameterCount()];
                Class<?> first = constructor.getParameterTypes()[0];
                given[0] = first.getSimpleName().endsWith("Consumer") ? create(first) : null;
                return constructor.newInstance(given);
            } catch (ReflectiveOperationException | RuntimeException unfit) {
                continue;
            }
        }
        return null;
    }
}
