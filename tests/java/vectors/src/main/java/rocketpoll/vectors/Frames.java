package rocketpoll.vectors;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.channel.embedded.EmbeddedChannel;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Predicate;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.exception.RemotingCommandException;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Whole frames: every request and its answer in both serialize types, and the odd cases. */
final class Frames {
    /**
     * One request: code, simple names of the request's and the answer's header classes, of their bodies' classes.
     * "-" is none; "bytes" as a body is some octets; a header class that this version lacks counts as none.
     */
    private static final String CALLS = """
        10  SendMessageRequestHeader                 bytes               SendMessageResponseHeader             -
        11  PullMessageRequestHeader                 -                   PullMessageResponseHeader             bytes
        12  QueryMessageRequestHeader                -                   QueryMessageResponseHeader            bytes
        14  QueryConsumerOffsetRequestHeader         -                   QueryConsumerOffsetResponseHeader     -
        15  UpdateConsumerOffsetRequestHeader        -                   UpdateConsumerOffsetResponseHeader    -
        17  CreateTopicRequestHeader                 -                   -                                     -
        29  SearchOffsetRequestHeader                -                   SearchOffsetResponseHeader            -
        30  GetMaxOffsetRequestHeader                -                   GetMaxOffsetResponseHeader            -
        31  GetMinOffsetRequestHeader                -                   GetMinOffsetResponseHeader            -
        32  GetEarliestMsgStoretimeRequestHeader     -                   GetEarliestMsgStoretimeResponseHeader -
        33  ViewMessageRequestHeader                 -                   ViewMessageResponseHeader             bytes
        34  HeartbeatRequestHeader                   HeartbeatData       -                                     -
        35  UnregisterClientRequestHeader            -                   UnregisterClientResponseHeader        -
        36  ConsumerSendMsgBackRequestHeader         -                   -                                     -
        37  EndTransactionRequestHeader              -                   EndTransactionResponseHeader          -
        38  GetConsumerListByGroupRequestHeader      -                   GetConsumerListByGroupResponseHeader  GetConsumerListByGroupResponseBody
        39  CheckTransactionStateRequestHeader       bytes               CheckTransactionStateResponseHeader   -
        40  NotifyConsumerIdsChangedRequestHeader    -                   -                                     -
        41  LockBatchMqRequestHeader                 LockBatchRequestBody    -                                 LockBatchResponseBody
        42  UnlockBatchMqRequestHeader               UnlockBatchRequestBody  -                                 -
        100 PutKVConfigRequestHeader                 -                   -                                     -
        101 GetKVConfigRequestHeader                 -                   GetKVConfigResponseHeader             -
        102 DeleteKVConfigRequestHeader              -                   -                                     -
        103 RegisterBrokerRequestHeader              bytes               RegisterBrokerResponseHeader          KVTable
        104 UnRegisterBrokerRequestHeader            -                   -                                     -
        105 GetRouteInfoRequestHeader                -                   -                                     TopicRouteData
        106 -                                        -                   -                                     ClusterInfo
        200 -                                        SubscriptionGroupConfig -                                 -
        202 GetTopicStatsInfoRequestHeader           -                   -                                     TopicStatsTable
        203 GetConsumerConnectionListRequestHeader   -                   -                                     ConsumerConnection
        204 GetProducerConnectionListRequestHeader   -                   -                                     ProducerConnection
        205 WipeWritePermOfBrokerRequestHeader       -                   WipeWritePermOfBrokerResponseHeader   -
        206 -                                        -                   -                                     TopicList
        207 DeleteSubscriptionGroupRequestHeader     -                   -                                     -
        208 GetConsumeStatsRequestHeader             -                   -                                     ConsumeStats
        215 DeleteTopicRequestHeader                 -                   -                                     -
        216 DeleteTopicFromNamesrvRequestHeader      -                   -                                     -
        219 GetKVListByNamespaceRequestHeader        -                   -                                     KVTable
        220 ResetOffsetRequestHeader                 ResetOffsetBody     -                                     -
        221 GetConsumerStatusRequestHeader           -                   -                                     GetConsumerStatusBody
        222 ResetOffsetRequestHeader                 -                   -                                     ResetOffsetBody
        223 GetConsumerStatusRequestHeader           -                   -                                     GetConsumerStatusBody
        224 GetTopicsByClusterRequestHeader          -                   -                                     TopicList
        300 QueryTopicConsumeByWhoRequestHeader      -                   -                                     GroupList
        303 QueryConsumeTimeSpanRequestHeader        -                   -                                     QueryConsumeTimeSpanBody
        304 -                                        -                   -                                     TopicList
        307 GetConsumerRunningInfoRequestHeader      -                   -                                     ConsumerRunningInfo
        308 QueryCorrectionOffsetHeader              -                   -                                     QueryCorrectionOffsetBody
        309 ConsumeMessageDirectlyResultRequestHeader bytes              -                                     ConsumeMessageDirectlyResult
        310 SendMessageRequestHeaderV2               bytes               SendMessageResponseHeader             -
        314 CloneGroupOffsetRequestHeader            -                   -                                     -
        315 ViewBrokerStatsDataRequestHeader         -                   -                                     BrokerStatsData
        317 GetConsumeStatsInBrokerHeader            -                   -                                     ConsumeStatsList
        320 SendMessageRequestHeaderV2               bytes               SendMessageResponseHeader             -
        321 QueryConsumeQueueRequestHeader           -                   -                                     QueryConsumeQueueResponseBody
        322 QueryDataVersionRequestHeader            DataVersion         QueryDataVersionResponseHeader        DataVersion
        323 ResumeCheckHalfMessageRequestHeader      -                   -                                     -
        324 SendMessageRequestHeader                 bytes               SendMessageResponseHeader             -
        325 SendMessageRequestHeaderV2               bytes               SendMessageResponseHeader             -
        326 ReplyMessageRequestHeader                bytes               -                                     -
        327 AddWritePermOfBrokerRequestHeader        -                   AddWritePermOfBrokerResponseHeader    -
        """;

    private static final String CALLS_SINCE_5 = """
        351 GetTopicConfigRequestHeader              -                   -                                     TopicConfig
        352 GetSubscriptionGroupConfigRequestHeader  -                   -                                     SubscriptionGroupConfig
        361 PullMessageRequestHeader                 -                   PullMessageResponseHeader             bytes
        3001 CreateUserRequestHeader                 UserInfo            -                                     -
        3002 UpdateUserRequestHeader                 UserInfo            -                                     -
        3003 DeleteUserRequestHeader                 -                   -                                     -
        3004 GetUserRequestHeader                    -                   -                                     UserInfo
        3005 ListUsersRequestHeader                  -                   -                                     -
        3006 CreateAclRequestHeader                  AclInfo             -                                     -
        3007 UpdateAclRequestHeader                  AclInfo             -                                     -
        3008 DeleteAclRequestHeader                  -                   -                                     -
        3009 GetAclRequestHeader                     -                   -                                     AclInfo
        3010 ListAclsRequestHeader                   -                   -                                     -
        """;

    private static final List<Integer> ONEWAY = List.of(37, 39, 40, 220);
    private static final byte[] BYTES = {0, 1, 2, (byte) 0x80, (byte) 0xff, 'b', 'o', 'd', 'y'};
    private static final String REMARK = "bemerkung \u00fc, \u5907\u6ce8 \ud83d\ude80 \"quoted\" \\ \t\n";

    private final List<Object> frames = new ArrayList<>();
    private int opaque = 1000;

    private Frames() {
    }

    static List<Object> all() throws Exception {
        Frames frames = new Frames();
        for (String line : calls()) {
            String[] call = line.trim().split("\\s+");
            frames.call(Integer.parseInt(call[0]), call[1], call[2], call[3], call[4]);
        }
        frames.oddCases();
        return frames.frames;
    }

    /** The rows of all requests that this version has. */
    static List<String> calls() {
        String calls = Beans.find("GetTopicConfigRequestHeader").isPresent() ? CALLS + CALLS_SINCE_5 : CALLS;
        return calls.lines().toList();
    }

    /** The ext fields of a request whose header has a value in every field. */
    static Map<String, String> extFields(int code, String headerClass) throws RemotingCommandException {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, header(headerClass, "full"));
        byte[] frame = encode(request);
        return RemotingCommand.decode(Arrays.copyOfRange(frame, 4, frame.length)).getExtFields();
    }

    private void call(int code, String requestHeader, String requestBody, String responseHeader, String responseBody) throws Exception {
        for (String variant : variants(requestHeader)) {
            add(code + "-request-" + variant, code, requestHeader, () -> {
                RemotingCommand request = RemotingCommand.createRequestCommand(code, header(requestHeader, variant));
                if (ONEWAY.contains(code)) {
                    request.markOnewayRPC();
                }
                request.setLanguage(List.of(LanguageCode.JAVA, LanguageCode.PYTHON, LanguageCode.CPP).get(code % 3));
                request.setBody(body(requestBody));
                extraRequestFields(code, request);
                return request;
            });
        }
        if (ONEWAY.contains(code) && !responseHeader.endsWith("ResponseHeader")) {
            return;
        }
        for (String variant : variants(responseHeader)) {
            add(code + "-response-" + variant, code, responseHeader, () -> {
                RemotingCommand response = RemotingCommand.createResponseCommand(0, code % 4 == 0 ? REMARK : null);
                response.writeCustomHeader(header(responseHeader, variant));
                response.setBody(body(responseBody));
                if (responseHeader.equals("SendMessageResponseHeader")) {
                    response.addExtField("MSG_REGION", "DefaultRegion");
                    response.addExtField("TRACE_ON", "true");
                }
                return response;
            });
        }
    }

    /** Fields that the Java client or broker adds next to the header. */
    private static void extraRequestFields(int code, RemotingCommand request) {
        if (code == 12) {
            request.addExtField("_UNIQUE_KEY_QUERY", "true");
        } else if (code == 320) {
            Beans.fields(request.readCustomHeader().getClass()).stream().filter(field -> field.getName().equals("m"))
                .forEach(batch -> Beans.set(batch, request.readCustomHeader(), true));
        }
    }

    private void oddCases() throws Exception {
        response("plain", 10, 0, null, null, response -> { });
        response("remark-only", 10, 0, "ok", null, response -> { });
        response("empty-remark", 10, 0, "", null, response -> { });
        response("remark-non-ascii", 10, 1, REMARK, null, response -> { });
        response("topic-not-exist", 105, 17, "No topic route info in name server for the topic: \u4e3b\u9898", null, response -> { });
        response("code-not-supported", 9999, 3, " request type 9999 not supported", null, response -> { });
        response("pull-not-found", 11, 19, "NO_MESSAGE_IN_QUEUE", "PullMessageResponseHeader", response -> { });
        response("error-with-body", 11, 1, "x", null, response -> response.setBody(BYTES));
        response("empty-body", 206, 0, null, null, response -> response.setBody(new byte[0]));
        response("broker-error-code", 361, 2017, "lite", null, response -> { });
        response("opaque-max", 34, 0, null, null, response -> response.setOpaque(Integer.MAX_VALUE));
        response("opaque-min", 34, 0, null, null, response -> response.setOpaque(Integer.MIN_VALUE));
        response("opaque-minus-one", 34, 0, null, null, response -> response.setOpaque(-1));
        response("version-0", 34, 0, null, null, response -> response.setVersion(0));

        add("odd-oneway-no-header", 105, "-", () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(105, null);
            request.markOnewayRPC();
            return request;
        });
        add("odd-oneway-update-offset", 15, "UpdateConsumerOffsetRequestHeader", () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(15, header("UpdateConsumerOffsetRequestHeader", "full"));
            request.markOnewayRPC();
            return request;
        });
        add("odd-negative-code", -1, "-", () -> RemotingCommand.createRequestCommand(-1, null));
        extFields("ext-non-ascii", ext -> {
            ext.accept("schl\u00fcssel");
            ext.accept("\u952e\ud83d\udd11");
        });
        extFields("ext-control-characters", ext -> {
            ext.accept("properties");
            ext.accept("\u0001\u0002");
            ext.accept("nul\u0000 del\u007f nel\u0085 ls\u2028 ps\u2029");
        });
        extFields("ext-many", ext -> {
            for (int i = 0; i < 60; i++) {
                ext.accept("key" + i);
            }
        });
        ext("ext-empty-value", "key", "");
        ext("ext-null-value", "key", null);
        ext("ext-empty-key", "", "value");
        ext("ext-empty-map", null, null);
        add("odd-ext-and-header", 105, "GetRouteInfoRequestHeader", () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(105, header("GetRouteInfoRequestHeader", "full"));
            request.addExtField("unknownField", "ignored");
            return request;
        });
        add("odd-code-beyond-16-bits", 200050, "-", () -> RemotingCommand.createRequestCommand(200050, null));
        // The hook copies the header into the ext map; a fast-coded header is then written a second time in binary.
        signed(310, "SendMessageRequestHeaderV2");
        signed(30, "GetMaxOffsetRequestHeader");
        for (LanguageCode language : LanguageCode.values()) {
            add("odd-language-" + language, 106, "-", () -> {
                RemotingCommand request = RemotingCommand.createRequestCommand(106, null);
                request.setLanguage(language);
                return request;
            });
        }
    }

    private void response(String name, int requestCode, int code, String remark, String header, Consumer<RemotingCommand> change)
        throws Exception {
        add("odd-" + name, requestCode, header == null ? "-" : header, () -> {
            RemotingCommand response = RemotingCommand.createResponseCommand(code, remark);
            response.writeCustomHeader(header(header == null ? "-" : header, "full"));
            change.accept(response);
            return response;
        });
    }

    private void signed(int code, String headerClass) throws Exception {
        add("odd-signed-" + code, code, headerClass, () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(code, header(headerClass, "required"));
            request.setBody(BYTES);
            new AclClientRPCHook(new SessionCredentials("accessKey", "secretKey")).doBeforeRequest(null, request);
            return request;
        });
    }

    private void extFields(String name, Consumer<Consumer<String>> keys) throws Exception {
        add("odd-" + name, 999, "-", () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(999, null);
            keys.accept(key -> request.addExtField(key, "value of " + key));
            return request;
        });
    }

    private void ext(String name, String key, String value) throws Exception {
        add("odd-" + name, 999, "-", () -> {
            RemotingCommand request = RemotingCommand.createRequestCommand(999, null);
            request.addExtField("first", "1");
            request.addExtField(key, value);
            if (key == null) {
                request.getExtFields().clear();
            }
            return request;
        });
    }

    private interface Maker {
        RemotingCommand make() throws Exception;
    }

    /** Makes the command anew for each serialize type, since encoding changes it. */
    private void add(String name, int requestCode, String headerClass, Maker maker) throws Exception {
        opaque++;
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand command = maker.make();
            command.setSerializeTypeCurrentRPC(type);
            if (!name.startsWith("odd-opaque")) {
                command.setOpaque(opaque);
            }
            if (!name.equals("odd-version-0")) {
                command.setVersion(MQVersion.CURRENT_VERSION);
            }
            byte[] frame = encode(command);
            String header = Beans.find(headerClass).isPresent() ? headerClass : null;
            Map<String, Object> object = Json.object("name", name + "-" + type, "kind", kind(command), "requestCode", requestCode);
            object.putAll(decode(frame, header));
            object.put("headerClass", header);
            object.put("frame", HexFormat.of().formatHex(frame));
            frames.add(object);
        }
    }

    private static String kind(RemotingCommand command) {
        if (command.isResponseType()) {
            return "response";
        }
        return command.isOnewayRPC() ? "oneway" : "request";
    }

    /** Through the pipeline handler that the real client and broker use. */
    private static byte[] encode(RemotingCommand command) {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyEncoder());
        channel.writeOutbound(command);
        ByteBuf buffer = channel.readOutbound();
        byte[] frame = ByteBufUtil.getBytes(buffer);
        buffer.release();
        return frame;
    }

    /** What Java reads from a whole frame; the header only if a class is given. */
    static Map<String, Object> decode(byte[] frame, String headerClass) throws RemotingCommandException {
        int length = ByteBuffer.wrap(frame).getInt();
        if (length != frame.length - 4) {
            throw new IllegalArgumentException("length word " + length + " in a frame of " + frame.length + " bytes");
        }
        RemotingCommand command = RemotingCommand.decode(Arrays.copyOfRange(frame, 4, frame.length));
        Map<String, Object> object = Json.object(
            "code", command.getCode(),
            "serializeType", command.getSerializeTypeCurrentRPC().name(),
            "language", command.getLanguage() == null ? null : command.getLanguage().name(),
            "version", command.getVersion(),
            "opaque", command.getOpaque(),
            "flag", command.getFlag(),
            "remark", command.getRemark(),
            "ext", ext(command),
            "body", command.getBody() == null ? null : HexFormat.of().formatHex(command.getBody()));
        if (headerClass != null) {
            Class<? extends CommandCustomHeader> type = Beans.get(headerClass).asSubclass(CommandCustomHeader.class);
            object.put("header", Dump.header(command.decodeCommandCustomHeader(type)));
        }
        return object;
    }

    /** Sorted; Java reads an empty key of the binary form as null, which is shown as "null". */
    private static Map<String, Object> ext(RemotingCommand command) {
        if (command.getExtFields() == null) {
            return null;
        }
        Map<String, Object> ext = new TreeMap<>();
        command.getExtFields().forEach((key, value) -> ext.put(String.valueOf(key), value));
        return ext;
    }

    private static List<String> variants(String headerClass) {
        boolean optional = Beans.find(headerClass).stream().flatMap(type -> Beans.fields(type).stream())
            .anyMatch(field -> !Beans.isRequired(field) && !Beans.isRoutingExtra(field));
        return optional ? List.of("full", "required") : List.of("full");
    }

    private static CommandCustomHeader header(String headerClass, String variant) {
        Predicate<Field> wanted = variant.equals("full") ? field -> true : Beans::isRequired;
        return (CommandCustomHeader) Beans.find(headerClass).map(type -> Filler.single().bean(type, wanted)).orElse(null);
    }

    private static byte[] body(String bodyClass) {
        return switch (bodyClass) {
            case "-" -> null;
            case "bytes" -> BYTES;
            default -> RemotingSerializable.encode(Filler.single().bean(Beans.get(bodyClass)));
        };
    }
}
