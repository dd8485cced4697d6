package rocketpoll.clients;

import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Producers, consumers and mqadmin in one JVM: {@code NAMESRV}. Answers one line of standard input after the
 * other, each a JSON object, with one line of JSON. The first word of its {@code ask} says who is asked. No
 * answer waits for messages for longer than it was told to: who wants to wait asks again.
 */
public final class Main {
    private final Producers producers;
    private final LiteConsumers lites;
    private final PushConsumers pushes;
    private final PullConsumers pulls;
    private final Administration administration;
    private final MqAdmin mqAdmin;

    private Main(String nameServer) throws Exception {
        producers = new Producers(nameServer);
        lites = new LiteConsumers(nameServer);
        pushes = new PushConsumers(nameServer);
        pulls = new PullConsumers(nameServer);
        administration = new Administration(nameServer);
        mqAdmin = new MqAdmin(nameServer);
    }

    public static void main(String[] args) throws Exception {
        Lines lines = new Lines();
        Main asked = new Main(args[0]);
        for (String line = lines.read(); line != null; line = lines.read()) {
            lines.print(asked.answerOrError(line));
        }
        System.exit(0); // without waiting for clients to say good-bye
    }

    private Fields answerOrError(String line) {
        try {
            Fields request = Fields.parse(line);
            String[] who = request.text("ask").split(" ", 2);
            return new Fields().with("answer", answer(who[0], who[1], request));
        } catch (Exception e) {
            e.printStackTrace();
            return new Fields().with("error", e.toString()).with("code", codeOf(e));
        }
    }

    private Object answer(String who, String what, Fields request) throws Exception {
        return switch (who) {
            case "producer" -> producers.answer(what, request);
            case "lite" -> lites.answer(what, request);
            case "push" -> pushes.answer(what, request);
            case "pull" -> pulls.answer(what, request);
            case "admin" -> administration.answer(what, request);
            case "mqadmin" -> mqAdmin.run(what, request.texts("arguments"));
            default -> throw new IllegalArgumentException(who);
        };
    }

    /** The response code behind an exception, if there is one. */
    private static int codeOf(Exception error) {
        if (error instanceof MQBrokerException broker) {
            return broker.getResponseCode();
        }
        return error instanceof MQClientException client ? client.getResponseCode() : -1;
    }
}
