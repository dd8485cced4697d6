package rocketpoll.clients;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's command line for administrators; what it prints is kept. */
final class MqAdmin {
    private final String nameServer;

    MqAdmin(String nameServer) {
        this.nameServer = nameServer;
    }

    Fields run(String command, String[] arguments) throws Exception {
        List<String> line = new ArrayList<>(List.of(command, "-n", nameServer));
        line.addAll(List.of(arguments));
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        try {
            UntilShutDown.run(() -> {
                MQAdminStartup.main0(line.toArray(String[]::new), null);
                return null;
            }, () -> printed.size() > 0); // why it has failed, it says at the very end
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return new Fields()
            .with("printed", printed.toString(StandardCharsets.UTF_8))
            .with("complained", complained.toString(StandardCharsets.UTF_8));
    }
}
