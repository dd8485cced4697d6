package rocketpoll.vectors;

import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * What RocketMQ reads from spellings that its own classes never write: clients in other languages send enums as
 * numbers, booleans as text, or names in another case. Each member of each body and header that clients send is spelled
 * in every way of its type, one at a time.
 */
final class Spellings {
    private static final List<String> BODIES = List.of(
        "HeartbeatData", "CheckClientRequestBody", "LockBatchRequestBody", "UnlockBatchRequestBody",
        "SubscriptionGroupConfig", "SubscriptionGroupList", "CreateTopicListRequestBody", "DataVersion",
        "QueryAssignmentRequestBody");

    /** A member that has interfaces in it, of which no parser can make one. */
    private static final String OPAQUE = "groupRetryPolicy";

    private static final List<String> BOOLEANS = List.of("0", "1", "2", "-1", "0.0", "1.0", "1.5", "\"true\"", "\"TRUE\"", "\"True\"",
        "\"false\"", "\"FALSE\"", "\"False\"", "\"0\"", "\"1\"", "\"2\"", "\"Y\"", "\"N\"", "\"T\"", "\"F\"", "\"yes\"", "\"on\"",
        "\"\"", "\"null\"", "\" true \"", "null", "[]", "{}");
    private static final List<String> INTEGERS = List.of("\"5\"", "\"-5\"", "\"+5\"", "\" 5 \"", "\"5.0\"", "\"5.7\"", "\"5e2\"",
        "5.0", "-5.0", "5.7", "5e2", "5E2", "\"\"", "\"null\"", "\"x\"", "true", "false", "\"true\"", "null", "[]", "{}", "2147483647",
        "2147483648", "\"2147483648\"", "9223372036854775807", "9223372036854775808", "\"9223372036854775808\"", "1e30", "\"1,000\"", "5L", "\"5L\"",
        "\"0x5\"", "\"\u0665\"");
    private static final List<String> TEXTS = List.of("5", "-5", "5.0", "1.50", "5e2", "true", "false", "null", "\"\"", "\"null\"",
        "12345678901234567890", "{}", "{\"a\":1}", "[]", "[\"a\"]");
    private static final List<String> COLLECTIONS = List.of("null", "[]", "[null]", "\"\"", "\"null\"", "\"x\"", "\"[]\"", "{}", "5", "true");
    private static final List<String> OBJECTS = List.of("null", "\"\"", "\"null\"", "\"x\"", "\"{}\"", "[]", "5", "true");

    private static final List<String> HEADER_TEXTS = List.of("5", "-5", "+5", " 5 ", "5.0", "5.7", "5e2", "", "null", "x", "true", "TRUE", "True",
        "false", "1", "0", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1,000", "5L", "0x5", "\u0665");

    private final List<Object> rows = new ArrayList<>();
    private final Map<String, List<Object>> fields = new HashMap<>();

    private Spellings() {
    }

    static List<Object> all() throws Exception {
        Spellings spellings = new Spellings();
        for (String name : BODIES) {
            if (Beans.find(name).isPresent()) {
                spellings.body(name);
            }
        }
        spellings.command();
        for (String line : Frames.calls()) {
            String[] call = line.trim().split("\\s+");
            if (Beans.find(call[1]).isPresent()) {
                spellings.header(Integer.parseInt(call[0]), call[1]);
            }
        }
        return spellings.rows;
    }

    // ---- bodies

    private void body(String name) throws Exception {
        Class<?> type = Beans.get(name);
        Object bean = Filler.single().bean(type, field -> !field.getName().equals(OPAQUE));
        Object tree = Dump.of(bean);
        Parser parser = text -> Dump.of(RemotingSerializable.decode(text.getBytes(StandardCharsets.UTF_8), type));
        Object read = parser.parse(Json.print(tree));
        if (!Json.print(read).equals(Json.print(tree))) {
            throw new IllegalStateException("not read as it was written: " + name + ": " + Json.print(tree) + " " + Json.print(read));
        }
        rows.add(Json.object("name", name, "kind", "body", "class", name, "text", Json.print(tree)));
        members(name, parser, tree, tree, type, List.of());
        if (name.equals("HeartbeatData")) {
            texts(name, parser, tree);
        }
    }

    /** The text as a whole, in ways that are no strict JSON. */
    private void texts(String name, Parser parser, Object tree) {
        String text = Json.print(tree);
        Map<String, String> odd = new LinkedHashMap<>();
        odd.put("single quotes", text.replace('"', '\''));
        odd.put("names without quotes", text.replaceAll("\"(\\w+)\":", "$1:"));
        odd.put("names in single quotes", text.replaceAll("\"(\\w+)\":", "'$1':"));
        odd.put("comma after the last member", text.replace("}", ",}"));
        odd.put("comma after the last element", text.replace("]", ",]"));
        odd.put("two commas", text.replace("\",\"", "\",,\""));
        odd.put("blanks", "\n\t " + text.replace(":", " : ").replace(",", " ,\n") + " \r\n");
        odd.put("byte order mark", "\ufeff" + text);
        odd.put("zero byte at the end", text + "\0");
        odd.put("text at the end", text + "x");
        odd.put("brace at the end", text + "}");
        odd.put("last brace missing", text.substring(0, text.length() - 1));
        odd.put("comment", "/* a comment */" + text);
        odd.put("line comment", "// a comment\n" + text);
        odd.put("words in upper case", text.replace("true", "TRUE"));
        odd.put("words capitalized", text.replace("true", "True"));
        odd.put("escaped letters", text.replace("clientID", "client\\u0049D"));
        odd.put("escaped slash", text.replace("-value", "\\/value"));
        odd.put("escaped single quote", text.replace("-value", "\\'value"));
        odd.put("hexadecimal escape", text.replace("-value", "\\x2dvalue"));
        odd.put("line break in a text", text.replace("-value", "\nvalue"));
        odd.put("tab in a text", text.replace("-value", "\tvalue"));
        odd.put("a name twice", text.replaceFirst("\"clientID\":", "\"clientID\":\"other\",\"clientID\":"));
        odd.put("a name in two cases", text.replaceFirst("\"clientID\":", "\"ClientID\":\"other\",\"clientID\":"));
        odd.put("a name in two cases, exact first", text.replaceFirst("(\"clientID\":\"[^\"]*\")", "$1,\"ClientID\":\"other\""));
        odd.put("unknown members", text.replaceFirst("\\{", "{\"unknown\":{\"x\":[1,{}]},"));
        odd.forEach((spelling, changed) -> {
            Map<String, Object> row = Json.object("name", name + ": " + spelling, "kind", "text", "class", name, "text", changed);
            try {
                row.put("value", parser.parse(changed));
            } catch (Exception e) {
                row.put("refused", true);
            }
            rows.add(row);
        });
    }

    private void members(String name, Parser parser, Object root, Object tree, Type type, List<Object> path) throws Exception {
        if (tree instanceof Map<?, ?> object && !(type instanceof ParameterizedType)) {
            for (Field field : Beans.fields((Class<?>) type)) {
                String key = field.getName().equals("isWithoutSub") ? "withoutSub" : field.getName();
                if (object.containsKey(key) && !key.equals(OPAQUE)) {
                    member(name, parser, root, field.getGenericType(), plus(path, key), object.get(key));
                }
            }
        } else if (tree instanceof Map<?, ?> map) {
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                member(name, parser, root, argument(type, 1), plus(path, entry.getKey()), entry.getValue());
            }
        } else if (tree instanceof List<?> list && !list.isEmpty()) {
            member(name, parser, root, argument(type, 0), plus(path, 0), list.get(0));
        }
    }

    private void member(String name, Parser parser, Object root, Type type, List<Object> path, Object value) throws Exception {
        Map<String, Object> row = Json.object("name", name + "/" + String.join("/", path.stream().map(Object::toString).toList()),
            "kind", "member", "class", name, "at", path);
        Parser member = fragment -> {
            Object dump = parser.parse(Json.print(replaced(root, path, 0, fragment)));
            boolean alone = Json.print(replaced(dump, path, 0, "")).equals(Json.print(replaced(root, path, 0, "")));
            return alone ? at(dump, path) : new Unclear();
        };
        Set<String> spellings = new LinkedHashSet<>();
        if (path.get(path.size() - 1) instanceof String key) {
            if (!(parent(root, path) instanceof TreeMap)) {
                names(row, key, Json.print(value), member, value);
            }
            values(type, value).forEach(each -> spellings.add("\"" + key + "\":" + each));
        } else {
            spellings.addAll(values(type, value));
        }
        read(row, spellings, member);
        rows.add(row);
        members(name, parser, root, value, type, path);
    }

    /** Other names of a member: those under which its value is found, and those that are passed over. */
    private static void names(Map<String, Object> row, String key, String text, Parser member, Object value) throws Exception {
        List<String> known = new ArrayList<>();
        List<String> unknown = new ArrayList<>();
        for (String name : keys(key)) {
            Object found = member.parse("\"" + name + "\":" + text);
            (Objects.equals(found, value) ? known : unknown).add(name);
        }
        row.put("names", known);
        row.put("otherNames", unknown);
    }

    /** A spelling after which other members read differently; not a thing that a client could rely on. */
    private record Unclear() {
    }

    private static void read(Map<String, Object> row, Collection<String> spellings, Parser parser) {
        List<Object> read = new ArrayList<>();
        List<Object> refused = new ArrayList<>();
        for (String spelling : spellings) {
            try {
                Object value = parser.parse(spelling);
                if (!(value instanceof Unclear)) {
                    read.add(Arrays.asList(spelling, isOfThisRun(value) ? null : value));
                }
            } catch (Exception | Error e) {
                refused.add(spelling);
            }
        }
        row.put("read", read);
        row.put("refused", refused);
    }

    /** Whether a value was made at this run, as fields are that hold the time of their making: it is a default. */
    private static boolean isOfThisRun(Object value) {
        if (value instanceof Collection<?> items) {
            return items.stream().anyMatch(Spellings::isOfThisRun);
        } else if (value instanceof Map<?, ?> members) {
            return isOfThisRun(members.values());
        }
        return value instanceof Long time && Math.abs(System.currentTimeMillis() - time) < 600_000;
    }

    private static Set<String> keys(String key) {
        String capitalized = key.substring(0, 1).toUpperCase(Locale.ROOT) + key.substring(1);
        String snake = key.replaceAll("([a-z0-9])([A-Z])", "$1_$2").toLowerCase(Locale.ROOT);
        Set<String> keys = new LinkedHashSet<>(List.of(capitalized, key.toLowerCase(Locale.ROOT), key.toUpperCase(Locale.ROOT), snake,
            snake.toUpperCase(Locale.ROOT), snake.replace('_', '-'), "_" + key, "is" + capitalized, "is_" + snake, " " + key));
        keys.remove(key);
        return keys;
    }

    private static Collection<String> values(Type type, Object value) {
        if (type instanceof ParameterizedType generic) {
            Set<String> spellings = new LinkedHashSet<>(COLLECTIONS);
            if (value instanceof List<?> list && !list.isEmpty()) {
                spellings.add(Json.print(list.get(0)));
                spellings.add(Json.print(Json.print(list)));
            }
            return spellings;
        }
        Class<?> raw = (Class<?>) type;
        if (raw.isEnum()) {
            return enumValues(raw);
        } else if (raw == boolean.class || raw == Boolean.class) {
            return BOOLEANS;
        } else if (raw == int.class || raw == Integer.class || raw == long.class || raw == Long.class || raw == AtomicLong.class) {
            return INTEGERS;
        } else if (raw == String.class) {
            return TEXTS;
        }
        Set<String> spellings = new LinkedHashSet<>(OBJECTS);
        spellings.add(Json.print(Json.print(value)));
        return spellings;
    }

    private static Collection<String> enumValues(Class<?> type) {
        Set<String> spellings = new LinkedHashSet<>();
        Object[] constants = type.getEnumConstants();
        for (int i = 0; i < constants.length; i++) {
            String name = ((Enum<?>) constants[i]).name();
            StringBuilder pascal = new StringBuilder();
            for (String word : name.split("_")) {
                pascal.append(word.charAt(0)).append(word.substring(1).toLowerCase(Locale.ROOT));
            }
            spellings.addAll(List.of(String.valueOf(i), "\"" + i + "\"", i + ".0", quoted(name), quoted(name.toLowerCase(Locale.ROOT)),
                quoted(name.charAt(0) + name.substring(1).toLowerCase(Locale.ROOT)), quoted(pascal.toString()),
                quoted(name.replace('_', '-')), quoted(constants[i].toString())));
        }
        spellings.addAll(List.of(String.valueOf(constants.length), "-1", "\"" + constants.length + "\"", "\"\"", "\"UNKNOWN\"", "\"null\"", "null",
            "true", "[]", "{}"));
        return spellings;
    }

    private static String quoted(String text) {
        return "\"" + text + "\"";
    }

    // ---- the JSON header of a command

    private void command() throws Exception {
        Map<String, Object> base = Json.object("code", 34, "extFields", new TreeMap<>(Map.of("key", "value")), "flag", 2, "language", "CPP", "opaque",
            77, "remark", "a remark", "serializeTypeCurrentRPC", "JSON", "version", 399);
        rows.add(Json.object("name", "RemotingCommand", "kind", "command", "text", Json.print(base)));
        Map<String, Collection<String>> values = new LinkedHashMap<>();
        for (String integer : List.of("code", "flag", "opaque", "version")) {
            values.put(integer, INTEGERS);
        }
        values.put("language", enumValues(Class.forName("org.apache.rocketmq.remoting.protocol.LanguageCode")));
        values.put("remark", TEXTS);
        values.put("extFields", OBJECTS);
        values.put("serializeTypeCurrentRPC", enumValues(Class.forName("org.apache.rocketmq.remoting.protocol.SerializeType")));
        for (Map.Entry<String, Collection<String>> each : values.entrySet()) {
            String name = each.getKey();
            Set<String> spellings = new LinkedHashSet<>();
            each.getValue().forEach(value -> spellings.add(quoted(name) + ":" + value));
            commandRow(base, List.of(name), spellings, keys(name));
        }
        Set<String> texts = new LinkedHashSet<>();
        TEXTS.forEach(value -> texts.add(quoted("key") + ":" + value));
        commandRow(base, List.of("extFields", "key"), texts, Set.of());
        String text = Json.print(base);
        Map<String, String> odd = new LinkedHashMap<>();
        odd.put("single quotes", text.replace('"', '\''));
        odd.put("names without quotes", text.replaceAll("\"(\\w+)\":", "$1:"));
        odd.put("comma after the last member", text.replace("}", ",}"));
        odd.put("unknown members", text.replaceFirst("\\{", "{\"unknown\":{\"x\":[1,{}]},"));
        odd.put("text at the end", text + "x");
        odd.put("zero byte at the end", text + "\0");
        odd.forEach((spelling, changed) -> {
            Map<String, Object> row = Json.object("name", "RemotingCommand: " + spelling, "kind", "command-text", "text", changed);
            try {
                row.put("value", command(changed));
            } catch (Exception e) {
                row.put("refused", true);
            }
            rows.add(row);
        });
    }

    /** An opaque that is made up where none is read counts as none. */
    private void commandRow(Map<String, Object> base, List<Object> path, Collection<String> spellings, Set<String> names) throws Exception {
        Map<String, Object> row = Json.object("name", "RemotingCommand/" + String.join("/", path.stream().map(Object::toString).toList()),
            "kind", "command-member", "at", path);
        Parser member = fragment -> {
            Object value = at(command(Json.print(replaced(base, path, 0, fragment))), path);
            boolean madeUp = path.contains("opaque") && !value.equals(at(command(Json.print(replaced(base, path, 0, fragment))), path));
            return madeUp ? null : value;
        };
        if (!names.isEmpty()) {
            names(row, (String) path.get(0), Json.print(base.get(path.get(0))), member, base.get(path.get(0)));
        }
        read(row, spellings, member);
        rows.add(row);
    }

    private static Object command(String header) throws Exception {
        byte[] bytes = header.getBytes(StandardCharsets.UTF_8);
        byte[] frame = ByteBuffer.allocate(8 + bytes.length).putInt(4 + bytes.length).putInt(bytes.length).put(bytes).array();
        Map<String, Object> command = Frames.decode(frame, null);
        command.put("extFields", command.remove("ext"));
        command.put("serializeTypeCurrentRPC", command.remove("serializeType"));
        return command;
    }

    // ---- the fields of a request

    private void header(int code, String name) throws Exception {
        Class<? extends CommandCustomHeader> type = Beans.get(name).asSubclass(CommandCustomHeader.class);
        Map<String, String> base = Frames.extFields(code, name);
        for (Field field : Beans.fields(type)) {
            String key = field.getName();
            if (!base.containsKey(key)) {
                continue;
            }
            Map<String, Object> row = Json.object("kind", "header");
            read(row, HEADER_TEXTS, text -> {
                Map<String, String> ext = new HashMap<>(base);
                ext.put(key, text);
                return field(code, type, ext, field);
            });
            Map<String, String> without = new HashMap<>(base);
            without.remove(key);
            try {
                row.put("absent", field(code, type, without, field));
            } catch (Exception e) {
                row.put("absentRefused", true);
            }
            fields.computeIfAbsent(Json.print(row), signature -> {
                List<Object> alike = new ArrayList<>();
                row.put("fields", alike);
                rows.add(row);
                return alike;
            }).add(List.of(code, key));
        }
    }

    private static Object field(int code, Class<? extends CommandCustomHeader> type, Map<String, String> ext, Field field) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setExtFields(new HashMap<>(ext));
        return Dump.of(Beans.get(field, command.decodeCommandCustomHeader(type)));
    }

    // ---- trees of maps and lists

    private interface Parser {
        Object parse(String text) throws Exception;
    }

    private static List<Object> plus(List<Object> path, Object step) {
        List<Object> longer = new ArrayList<>(path);
        longer.add(step);
        return longer;
    }

    private static Type argument(Type type, int index) {
        return ((ParameterizedType) type).getActualTypeArguments()[index];
    }

    private static Object parent(Object root, List<Object> path) {
        return at(root, path.subList(0, path.size() - 1));
    }

    private static Object at(Object tree, List<Object> path) {
        Object value = tree;
        for (Object step : path) {
            if (value instanceof Map<?, ?> map) {
                value = map.get(step);
            } else if (value instanceof List<?> list && step instanceof Integer index && index < list.size()) {
                value = list.get(index);
            } else {
                return null;
            }
        }
        return value;
    }

    /** A copy of the tree with a text in place of a member, its name included, or of an element. */
    private static Object replaced(Object tree, List<Object> path, int depth, String fragment) {
        boolean last = depth == path.size() - 1;
        Object step = path.get(depth);
        if (tree instanceof Map<?, ?> map) {
            Map<String, Object> copy = new LinkedHashMap<>();
            map.forEach((key, value) -> {
                if (!Objects.equals(key, step)) {
                    copy.put((String) key, value);
                } else if (!last) {
                    copy.put((String) key, replaced(value, path, depth + 1, fragment));
                }
            });
            if (last && !fragment.isEmpty()) {
                copy.put("", new Json.Raw(fragment));
            }
            return copy;
        } else if (tree instanceof List<?> list && !list.isEmpty()) {
            List<Object> copy = new ArrayList<>(list);
            if (last) {
                copy.set(0, new Json.Raw(fragment));
            } else {
                copy.set(0, replaced(list.get(0), path, depth + 1, fragment));
            }
            return copy;
        }
        return tree;
    }
}
