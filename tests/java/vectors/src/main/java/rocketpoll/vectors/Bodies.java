package rocketpoll.vectors;

import java.lang.reflect.Array;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** JSON bodies. */
final class Bodies {
    private static final List<String> CLASSES = List.of(
        "TopicRouteData", "ClusterInfo", "TopicConfig", "TopicConfigSerializeWrapper", "SubscriptionGroupConfig",
        "SubscriptionGroupWrapper", "SubscriptionData", "HeartbeatData", "ConsumeStats", "ConsumeStatsList", "TopicStatsTable",
        "ConsumerConnection", "ProducerConnection", "ProducerTableInfo", "KVTable", "LockBatchRequestBody", "LockBatchResponseBody",
        "UnlockBatchRequestBody", "ResetOffsetBody", "ResetOffsetBodyForC", "GetConsumerStatusBody",
        "GetConsumerListByGroupResponseBody", "GroupList", "TopicList", "ConsumerRunningInfo",
        "ConsumeMessageDirectlyResult", "QueryConsumeTimeSpanBody", "QueryCorrectionOffsetBody", "CheckClientRequestBody",
        "BrokerStatsData", "DataVersion", "QueryConsumeQueueResponseBody", "QuerySubscriptionResponseBody", "ConsumeByWho",
        "ConsumerOffsetSerializeWrapper", "CreateTopicListRequestBody", "SubscriptionGroupList", "QueryAssignmentRequestBody",
        "UserInfo", "AclInfo");

    private Bodies() {
    }

    static List<Object> all() throws Exception {
        List<Object> bodies = new ArrayList<>();
        for (String name : CLASSES) {
            var type = Beans.find(name);
            if (type.isEmpty()) {
                System.err.println("bodies: no class " + name + " in this version");
                continue;
            }
            add(bodies, name, "single", Filler.single().bean(type.get()));
            add(bodies, name, "double", Filler.twofold().bean(type.get()));
            Filler sharing = Filler.sharing();
            Object shared = sharing.bean(type.get());
            if (sharing.shared() > 0) {
                add(bodies, name, "shared", shared);
            }
        }
        Object route = Filler.twofold().bean(Beans.get("TopicRouteData"));
        bodies.add(body("TopicRouteData", "standard", route, encodeStandard(route)));
        return bodies;
    }

    private static void add(List<Object> bodies, String name, String variant, Object bean) {
        try {
            bodies.add(body(name, variant, bean, RemotingSerializable.encode(bean)));
        } catch (RuntimeException e) {
            System.err.println("bodies: cannot encode " + name + " " + variant + ": " + e);
        }
    }

    private static Object body(String name, String variant, Object bean, byte[] text) {
        return Json.object(
            "name", name + "-" + variant,
            "class", name,
            "variant", variant,
            "text", new String(text, StandardCharsets.UTF_8),
            "value", Dump.of(bean));
    }

    /** As name servers answer clients of 4.9.4 and later; the feature enum is fastjson 1's or fastjson2's. */
    private static byte[] encodeStandard(Object bean) throws ReflectiveOperationException {
        List<String> wanted = List.of("BrowserCompatible", "QuoteFieldNames", "SkipTransientField", "MapSortField");
        for (Method encode : RemotingSerializable.class.getMethods()) {
            if (encode.getName().equals("encode") && encode.isVarArgs()) {
                Class<?> feature = encode.getParameterTypes()[0].getComponentType();
                Object[] known = Arrays.stream(feature.getEnumConstants()).filter(f -> wanted.contains(f.toString())).toArray();
                Object features = Array.newInstance(feature, known.length);
                System.arraycopy(known, 0, features, 0, known.length);
                return (byte[]) encode.invoke(bean, features);
            }
        }
        throw new NoSuchMethodException("RemotingSerializable.encode(features)");
    }
}
