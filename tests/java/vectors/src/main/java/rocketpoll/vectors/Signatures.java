package rocketpoll.vectors;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Requests as signed by the client's ACL hook. */
final class Signatures {
    private final List<Object> lines = new ArrayList<>();

    private Signatures() {
    }

    static List<Object> all() {
        Signatures signatures = new Signatures();
        SessionCredentials plain = new SessionCredentials("RocketMQ", "12345678");
        SessionCredentials token = new SessionCredentials("RocketMQ", "12345678", "security-token");
        SessionCredentials foreign = new SessionCredentials("\u7528\u6237", "schl\u00fcssel-\u5bc6\u94a5");
        byte[] body = "body".getBytes(StandardCharsets.UTF_8);
        signatures.add("topic-and-body", plain, null, request -> {
            request.addExtField("topic", "TopicTest");
            request.setBody(body);
        });
        signatures.add("no-fields", plain, null, request -> { });
        signatures.add("token", token, null, request -> request.setBody(body));
        signatures.add("empty-body", plain, null, request -> request.setBody(new byte[0]));
        signatures.add("binary-body", plain, null, request -> request.setBody(Records.randomBytes(100)));
        for (String header : List.of("GetMaxOffsetRequestHeader", "PullMessageRequestHeader", "SendMessageRequestHeader",
            "SendMessageRequestHeaderV2", "UpdateConsumerOffsetRequestHeader")) {
            signatures.add(header, plain, header, request -> { });
            signatures.add(header + "-token-body", token, header, request -> request.setBody(body));
        }
        signatures.add("non-ascii", foreign, "GetRouteInfoRequestHeader", request -> {
            request.addExtField("\u952e", "\u503c\ud83d\ude00");
            request.setBody("\u6d88\u606f".getBytes(StandardCharsets.UTF_8));
        });
        signatures.add("order", plain, null, request -> {
            for (String key : List.of("b", "B", "a", "A", "_", "aa", "\u00e4", "~", "0", "\uffee", "\ud83d\ude00")) {
                request.addExtField(key, "<" + key + ">");
            }
        });
        signatures.add("empty-value", plain, null, request -> request.addExtField("empty", ""));
        signatures.add("null-value", plain, null, request -> request.addExtField("missing", null));
        signatures.add("unique-key-query", plain, "QueryMessageRequestHeader", request -> request.addExtField("_UNIQUE_KEY_QUERY", "true"));
        signatures.add("old-signature-is-left-out", plain, null, request -> request.addExtField("Signature", "stale"));
        return signatures.lines;
    }

    private void add(String name, SessionCredentials credentials, String headerClass, Consumer<RemotingCommand> change) {
        CommandCustomHeader header = headerClass == null ? null : (CommandCustomHeader) Filler.single().bean(Beans.get(headerClass));
        RemotingCommand request = RemotingCommand.createRequestCommand(10, header);
        change.accept(request);
        new AclClientRPCHook(credentials).doBeforeRequest("broker", request);
        Map<String, String> ext = new TreeMap<>(request.getExtFields());
        String signature = ext.remove("Signature");
        lines.add(Json.object(
            "name", name,
            "secretKey", credentials.getSecretKey(),
            "ext", ext,
            "body", request.getBody() == null ? null : HexFormat.of().formatHex(request.getBody()),
            "signature", signature));
    }
}
