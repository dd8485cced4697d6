package rocketpoll.clients;

import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.function.BooleanSupplier;

/**
 * Runs something that ends with shutting a client down, but does not wait for the very end: when its broker has
 * been told all, a client of 5.5 often sleeps for three seconds more.
 */
final class UntilShutDown {
    private static final int POLL_MS = 3;

    private UntilShutDown() {
    }

    /** Comes back when it has ended, or is shutting down and is done with all that matters. */
    static void run(Callable<Void> task, BooleanSupplier done) throws Exception {
        FutureTask<Void> running = new FutureTask<>(task);
        Thread thread = new Thread(running, "until shut down");
        thread.setDaemon(true);
        thread.start();
        while (!running.isDone() && !(done.getAsBoolean() && isShuttingDown(thread))) {
            thread.join(POLL_MS);
        }
        if (running.isDone()) {
            running.get(); // says what has gone wrong
        }
    }

    private static boolean isShuttingDown(Thread thread) {
        return Arrays.stream(thread.getStackTrace()).anyMatch(frame ->
            frame.getClassName().endsWith(".NettyRemotingClient") && frame.getMethodName().equals("shutdown"));
    }
}
