package rocketpoll.vectors;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * White addresses and rights as a plain_acl.yml of 4.9 may spell them. 5.x has none of the classes, so they are found by
 * name.
 */
final class PlainLists {
    private static final String PLAIN = "org.apache.rocketmq.acl.plain.";
    private static final List<String> CLIENTS = List.of("127.0.0.1", "10.1.2.3", "10.1.2.30", "10.1.20.3", "10.10.2.3", "10.1.3.9",
        "10.1.5.5", "10.1.12.7", "192.168.0.1", "192.168.100.255", "::1", "fe80::1", "2001:db8:1:2:3:4:5:6", "2001:DB8:1:2:3:4:5:7", "2001:db8:1:3::1",
        "1050:0:0:0:5:600:300c:1");
    private static final List<String> PATTERNS = List.of("", " ", "*", "*.*.*.*", "*:*:*:*:*:*:*:*", "127.0.0.1", "10.1.2.3", " 10.1.2.3",
        "10.1.2.*", "10.1.*.*", "10.*.*.*", "10.1.2-5.*", "10.1.2-12.*", "10.1.2.3-30", "10.1.2.30-3", "10.1.*", "10.*", "10.1-5.*.*", "10.1.2.3,127.0.0.1", "10.1.2.3, 127.0.0.1",
        "10.1.2.{3,30}", "10.1.2.{3, 30}", "10.1.{2,3}.9", "10.1.2.{3-30}", "{10.1.2.3,127.0.0.1}", "10.1.*.3", "*.1.2.3", "10.1.2.256", "10.1.2", "10.1.2.-3",
        "10.1.2.0/24", "localhost", "::1", "fe80::1", "FE80::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:*", "2001:db8:1:2:3:4:5:6-7", "2001:db8:1:2:*:*:*:*", "2001:db8:1:2-3:*:*:*:*",
        "2001:db8:1:2:3:4:5:{6,7}", "1050::5:600:300c:1", "1050:0000:0000:0000:0005:0600:300c:0001", "::1,127.0.0.1", "fe80::*", "2001:db8::*", "fe80::1%eth0");
    private static final List<String> RIGHTS = Arrays.asList("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "ANY", "pub", "Pub|Sub", " PUB", "PUB | SUB", "PUB,SUB", "", "ALL", null);

    private PlainLists() {
    }

    static boolean isThere() {
        try {
            Class.forName(PLAIN + "RemoteAddressStrategyFactory");
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    static List<Object> all() throws ReflectiveOperationException {
        List<Object> lines = new ArrayList<>();
        for (String pattern : PATTERNS) {
            lines.add(address(pattern));
        }
        Method parse = Class.forName("org.apache.rocketmq.acl.common.Permission").getMethod("parsePermFromString", String.class);
        for (String right : RIGHTS) {
            byte bits = (byte) parse.invoke(null, right);
            lines.add(Json.object("kind", "right", "text", right, "deny", (bits & 1) > 0, "pub", (bits & 4) > 0, "sub", (bits & 8) > 0));
        }
        return lines;
    }

    private static Object address(String pattern) throws ReflectiveOperationException {
        Class<?> factory = Class.forName(PLAIN + "RemoteAddressStrategyFactory");
        Class<?> resource = Class.forName(PLAIN + "PlainAccessResource");
        List<String> matched = new ArrayList<>();
        try {
            Object strategy = factory.getMethod("getRemoteAddressStrategy", String.class).invoke(factory.getConstructor().newInstance(), pattern);
            Method match = Class.forName(PLAIN + "RemoteAddressStrategy").getMethod("match", resource);
            for (String client : CLIENTS) {
                Object asking = resource.getConstructor().newInstance();
                resource.getMethod("setWhiteRemoteAddress", String.class).invoke(asking, client);
                if ((boolean) match.invoke(strategy, asking)) {
                    matched.add(client);
                }
            }
        } catch (InvocationTargetException e) {
            return Json.object("kind", "address", "text", pattern, "clients", CLIENTS, "refused", String.valueOf(e.getCause()));
        }
        return Json.object("kind", "address", "text", pattern, "clients", CLIENTS, "matches", matched);
    }
}
