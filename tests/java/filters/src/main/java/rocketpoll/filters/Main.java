package rocketpoll.filters;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Answers each line of standard input, a JSON object that asks one thing, with one line of JSON. */
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
                answer.put("answer", request.containsKey("sql") ? conditions(request) : Subscriptions.build(request));
            } catch (Exception e) {
                answer.put("error", String.valueOf(e));
            }
            out.println(RemotingSerializable.toJson(answer, false));
        }
        out.flush();
    }

    /** What one expression comes to for each of the property maps. */
    private static List<String> conditions(Map<?, ?> request) throws Exception {
        Conditions conditions = new Conditions((String) request.get("sql"));
        List<String> results = new ArrayList<>();
        for (Object properties : (List<?>) request.get("properties")) {
            results.add(conditions.evaluate((Map<?, ?>) properties));
        }
        return results;
    }
}
