package rocketpoll.vectors;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.Compressor;
import org.apache.rocketmq.common.compression.CompressorFactory;

/** Bodies as the clients' compressors write them. */
final class Compression {
    private Compression() {
    }

    static List<Object> all() throws Exception {
        byte[] compressible = new byte[5000];
        for (int i = 0; i < compressible.length; i++) {
            compressible[i] = (byte) ("abcdefgh".charAt(i % 8) + i / 1000);
        }
        byte[] hundred = Arrays.copyOf(compressible, 100);
        List<byte[]> plains = List.of(new byte[0], new byte[] {'x'}, hundred, compressible, Records.randomBytes(3000));
        List<Object> lines = new ArrayList<>();
        for (CompressionType type : CompressionType.values()) {
            Compressor compressor = CompressorFactory.getCompressor(type);
            // LZ4 ignores the level.
            for (int level : type == CompressionType.LZ4 ? new int[] {5} : new int[] {1, 5, 9}) {
                for (byte[] plain : plains) {
                    lines.add(Json.object(
                        "type", type.name(),
                        "level", level,
                        "plain", HexFormat.of().formatHex(plain),
                        "compressed", HexFormat.of().formatHex(compressor.compress(plain, level))));
                }
            }
        }
        return lines;
    }

    static String decompress(String type, byte[] compressed) throws Exception {
        return HexFormat.of().formatHex(CompressorFactory.getCompressor(CompressionType.valueOf(type)).decompress(compressed));
    }
}
