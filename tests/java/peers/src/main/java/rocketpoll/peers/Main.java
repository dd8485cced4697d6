package rocketpoll.peers;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * A client of one broker: {@code NAMESRV BROKER}. Answers one line of standard input after the other, each a
 * JSON object whose {@code ask} says what is wanted, with one line of JSON.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever a library prints must not get between the answers
        if (args.length != 2) {
            System.err.println("usage: NAMESRV BROKER");
            System.exit(2);
        }
        answer(new Writer(args[0], args[1]), new Reader(args[0], args[1]), out);
        System.exit(0); // without waiting for clients to say good-bye
    }

    private static void answer(Writer writer, Reader reader, PrintStream out) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Fields answer = new Fields();
            try {
                Fields request = Fields.parse(line);
                answer.put("answer", switch (request.text("ask")) {
                    case "ready" -> reader.waitForRoute(request);
                    case "send" -> writer.send(request);
                    case "send in a transaction" -> writer.sendInTransaction(request);
                    case "queue" -> reader.queue(request);
                    case "message" -> reader.message(request);
                    case "view" -> reader.view(request);
                    case "key" -> reader.byKey(request);
                    case "unique key" -> reader.byUniqueKey(request);
                    case "time" -> reader.byTime(request);
                    default -> throw new IllegalArgumentException(line);
                });
            } catch (Exception e) {
                e.printStackTrace();
                answer.put("error", e.toString());
            }
            out.println(RemotingSerializable.toJson(answer, false));
        }
    }
}
