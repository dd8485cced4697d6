package rocketpoll.clients;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Standard input and output, for ourselves alone: whatever a library prints goes to standard error. */
final class Lines {
    private final PrintStream out =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    Lines() {
        System.setOut(System.err);
    }

    /** The next line, or null at the end. */
    String read() throws IOException {
        return in.readLine();
    }

    void waitForEndOfInput() throws IOException {
        while (read() != null) {
            continue;
        }
    }

    synchronized void print(Fields fields) {
        out.println(fields.toJson());
    }
}
