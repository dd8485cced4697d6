package rocketpoll.vectors;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A strict-JSON printer for maps, lists, texts, numbers, booleans and null; its output is pure ASCII. */
final class Json {
    private Json() {
    }

    static String print(Object value) {
        StringBuilder out = new StringBuilder();
        append(out, value);
        return out.toString();
    }

    /** A text that is printed as it stands: an element, or a member with its name. */
    record Raw(String text) {
    }

    /** An object with its keys in the given order: name, value, name, value... */
    static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            object.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return object;
    }

    private static void append(StringBuilder out, Object value) {
        if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                separator = ",";
                if (entry.getValue() instanceof Raw) {
                    append(out, entry.getValue());
                    continue;
                }
                quote(out, (String) entry.getKey());
                out.append(':');
                append(out, entry.getValue());
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String separator = "[";
            for (Object element : list) {
                out.append(separator);
                separator = ",";
                append(out, element);
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof Raw raw) {
            out.append(raw.text());
        } else if (value instanceof String text) {
            quote(out, text);
        } else if (value == null || value instanceof Boolean || isFinite(value)) {
            out.append(value);
        } else {
            throw new IllegalArgumentException("not a JSON value: " + value.getClass() + " " + value);
        }
    }

    private static boolean isFinite(Object value) {
        return value instanceof Number number && Double.isFinite(number.doubleValue());
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
