package rocketpoll.clients;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;

/** Clients that are running, by the names that the tests gave them. */
final class Named<T> {
    private final Map<String, T> clients = new HashMap<>();

    void put(String name, T client) {
        if (clients.putIfAbsent(name, client) != null) {
            throw new IllegalArgumentException(name + " is running already");
        }
    }

    T get(Fields request) {
        return known(request, clients.get(request.text("name")));
    }

    boolean stop(Fields request, Consumer<T> shutdown) throws Exception {
        T client = known(request, clients.remove(request.text("name")));
        UntilShutDown.run(() -> {
            shutdown.accept(client);
            return null;
        }, () -> true);
        return true;
    }

    private static <T> T known(Fields request, T client) {
        if (client == null) {
            throw new IllegalArgumentException(request.text("name") + " is not running");
        }
        return client;
    }
}
