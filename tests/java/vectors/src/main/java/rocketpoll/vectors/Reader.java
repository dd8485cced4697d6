package rocketpoll.vectors;

import java.util.HexFormat;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Decodes what the Python side encoded: one line {@code id, kind, class, hex} between tabs, one answer. */
final class Reader {
    private Reader() {
    }

    static Object answer(String line) {
        String[] parts = line.split("\t", -1);
        String id = parts[0];
        try {
            if (parts.length != 4) {
                throw new IllegalArgumentException("want 4 columns, got " + parts.length);
            }
            return Json.object("id", id, "ok", true, "value", value(parts[1], parts[2], HexFormat.of().parseHex(parts[3])));
        } catch (Exception | VirtualMachineError e) { // a wrong length can ask for more memory than there is
            return Json.object("id", id, "ok", false, "error", e.toString());
        }
    }

    private static Object value(String kind, String type, byte[] bytes) throws Exception {
        return switch (kind) {
            case "frame" -> Frames.decode(bytes, type.isEmpty() ? null : type);
            case "body" -> Dump.of(RemotingSerializable.decode(bytes, Beans.get(type)));
            case "record" -> Records.fields(bytes);
            case "compressed" -> Compression.decompress(type, bytes);
            case "batch" -> Messages.decodeBatch(bytes);
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
    }
}
