package rocketpoll.vectors;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TimeZone;

/** Entry point: {@code write DIR} prints the vector files, {@code read} decodes lines from standard input. */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // whatever a library prints must not get between the answers
        TimeZone.setDefault(TimeZone.getTimeZone("UTC")); // QueueTimeSpan prints its times also as local time
        if (args.length == 2 && args[0].equals("write")) {
            write(Path.of(args[1]));
        } else if (args.length == 1 && args[0].equals("read")) {
            read();
        } else {
            System.err.println("usage: write DIR | read");
            System.exit(2);
        }
    }

    private static void write(Path dir) throws Exception {
        Files.createDirectories(dir);
        writeLines(dir.resolve("frames.jsonl"), Frames.all());
        writeLines(dir.resolve("bodies.jsonl"), Bodies.all());
        writeLines(dir.resolve("records.jsonl"), Records.all());
        writeLines(dir.resolve("compressed.jsonl"), Compression.all());
        writeLines(dir.resolve("batches.jsonl"), Messages.batches());
        writeLines(dir.resolve("properties.jsonl"), Messages.properties());
        writeLines(dir.resolve("ids.jsonl"), Ids.all());
        writeLines(dir.resolve("signatures.jsonl"), Signatures.all());
        writeLines(dir.resolve("defaults.jsonl"), Defaults.all());
        if (PlainLists.isThere()) {
            writeLines(dir.resolve("plain_lists.jsonl"), PlainLists.all());
        }
        writeLines(dir.resolve("spellings.jsonl"), Spellings.all());
    }

    private static void writeLines(Path file, List<?> values) throws IOException {
        StringBuilder text = new StringBuilder();
        for (Object value : values) {
            text.append(Json.print(value)).append('\n');
        }
        Files.writeString(file, text, StandardCharsets.US_ASCII);
    }

    private static void read() throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(Json.print(Reader.answer(line)));
        }
    }
}
