package rocketpoll.load;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * One JVM of producers and consumers for all brokers that are compared, so that its code is equally warm for
 * each. Answers one line of standard input after the other, each a JSON object that says what load to put on
 * which broker, with one line of JSON: what was measured.
 */
public final class Main {
    private final Senders senders = new Senders();
    private final LitePulls litePulls = new LitePulls();
    private final Pushes pushes = new Pushes(senders);

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever a library prints must not get between the answers
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Main asked = new Main();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(RemotingSerializable.toJson(asked.answerOrError(line), false));
        }
        System.exit(0); // without waiting for clients to say good-bye
    }

    private Map<String, Object> answerOrError(String line) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            answer.put("answer", answer(new Order(RemotingSerializable.fromJson(line, Map.class))));
        } catch (Exception e) {
            e.printStackTrace();
            answer.put("error", e.toString());
        }
        return answer;
    }

    private Map<String, Object> answer(Order order) throws Exception {
        return switch (order.text("load")) {
            case "send" -> senders.send(order);
            case "send asynchronously" -> senders.sendAsynchronously(order);
            case "send batches" -> senders.sendBatches(order);
            case "fill" -> senders.fill(order);
            case "lite pull" -> litePulls.pull(order);
            case "push" -> pushes.measure(order);
            default -> throw new IllegalArgumentException(order.text("load"));
        };
    }
}
