package rocketpoll.vectors;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageId;

/** Message ids of both kinds, string hashes and checksums. */
final class Ids {
    private static final HexFormat HEX = HexFormat.of();

    private static final List<String> TEXTS = List.of(
        "", "a", "b", "ab", "ba", "TagA", "TagB", "Aa", "BB", "AaAa", "BBBB", "AaBB", "*", "TAGS", " ", "  ", "TagA ", "tag-1", "tag_2", "T#k1",
        "TopicTest#key", "polygenelubricants", "GydZG_", "DESIGNING WORKHOUSES", "0", "-1", "2147483648", "\u0000", "\u0001\u0002", "\t\n",
        "\u4e2d\u6587", "\u6d88\u606f\u961f\u5217", "\u65e5\u672c\u8a9e", "\ud55c\uae00", "\u00e4\u00f6\u00fc\u00df", "e\u0301", "\u00e9", "\uffff",
        "\ud83d\ude00", "\ud83d\ude80\ud83d\ude00", "\ud83d\udc68\u200d\ud83d\udc69\u200d\ud83d\udc67", "mixed \u4e2d \ud83d\ude00 end",
        "x".repeat(100), "long ".repeat(300), "\u4e2d".repeat(200), "a".repeat(31), "z".repeat(32));

    private Ids() {
    }

    static List<Object> all() throws Exception {
        List<Object> lines = new ArrayList<>();
        for (String address : List.of("0a000002", "7f000001", "ffffffff", "00000000",
            "20010db8000000000000000000000001", "fe80000000000000021122fffe334455")) {
            for (long offset : new long[] {0, 1234567, (1L << 33) + 5, Long.MAX_VALUE, -1}) {
                lines.add(offsetId(address, 10911, offset));
            }
        }
        lines.add(offsetId("0a000002", 65535, 1));
        lines.add(offsetId("0a000002", 0, 1));
        lines.add(uniqueId("0a000001", 4242, 0x12345678, 0, 0));
        lines.add(uniqueId("0a000001", 65535, -1, 2_678_399_999L, 65535));
        lines.add(uniqueId("c0a80164", 32768, 0x00ffee11, 1_000_000_000L, 1));
        lines.add(uniqueId("20010db8000000000000000000000001", 1, 7, 86_400_000L, 255));
        lines.add(uniqueId("fe80000000000000021122fffe334455", 40000, -7, 123_456_789L, 32768));
        for (String text : TEXTS) {
            lines.add(Json.object("kind", "hash", "text", text, "hash", text.hashCode()));
        }
        byte[][] inputs = {{}, {0}, {1}, {(byte) 0xff}, "hello".getBytes(), "123456789".getBytes(), new byte[64], Records.randomBytes(300)};
        for (byte[] input : inputs) {
            lines.add(Json.object("kind", "crc32", "bytes", HEX.formatHex(input), "crc32", UtilAll.crc32(input)));
        }
        return lines;
    }

    private static Object offsetId(String address, int port, long offset) throws Exception {
        String id = MessageDecoder.createMessageId(new InetSocketAddress(InetAddress.getByAddress(HEX.parseHex(address)), port), offset);
        MessageId decoded = MessageDecoder.decodeMessageId(id);
        InetSocketAddress host = (InetSocketAddress) decoded.getAddress();
        return Json.object(
            "kind", "offset",
            "id", id,
            "ip", host.getAddress().getHostAddress(),
            "ipBytes", HEX.formatHex(host.getAddress().getAddress()),
            "port", host.getPort(),
            "offset", decoded.getOffset());
    }

    /** Composed here instead of by createUniqID, whose parts depend on the machine and the clock. */
    private static Object uniqueId(String address, int pid, int loaderHash, long millisOfMonth, int counter) {
        byte[] ip = HEX.parseHex(address);
        ByteBuffer bytes = ByteBuffer.allocate(ip.length + 12);
        bytes.put(ip).putShort((short) pid).putInt(loaderHash).putInt((int) millisOfMonth).putShort((short) counter);
        String id = UtilAll.bytes2string(bytes.array());
        return Json.object(
            "kind", "unique",
            "id", id,
            "ip", MessageClientIDSetter.getIPStrFromID(id),
            "ipBytes", HEX.formatHex(MessageClientIDSetter.getIPFromID(id)),
            "pid", MessageClientIDSetter.getPidFromID(id),
            "loaderHash", loaderHash,
            "millisOfMonth", millisOfMonth,
            "counter", counter);
    }
}
