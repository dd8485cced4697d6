package rocketpoll.rebalance;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Answers each line of standard input, a JSON object that gives queues out, with one line of JSON. */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever a library prints must not get between the answers
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<?, ?> request = RemotingSerializable.fromJson(line, Map.class);
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("answer", allocate(request));
            } catch (Exception e) {
                answer.put("error", String.valueOf(e));
            }
            out.println(RemotingSerializable.toJson(answer, false));
        }
        out.flush();
    }

    /** Both lists are put in order before, as a consumer does it. */
    private static List<Object> allocate(Map<?, ?> request) {
        List<MessageQueue> queues = Strategies.queues(request.get("queues"));
        List<String> consumers = Strategies.texts(request.get("consumers"));
        Collections.sort(queues);
        Collections.sort(consumers);
        List<Object> given = new ArrayList<>();
        for (MessageQueue queue : Strategies.of(request).allocate("G", (String) request.get("me"), queues, consumers)) {
            given.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
        }
        return given;
    }
}
