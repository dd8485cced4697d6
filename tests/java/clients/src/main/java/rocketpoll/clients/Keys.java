package rocketpoll.clients;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** What clients sign with: a key of their own, an empty one for none, else that of the whole JVM. */
final class Keys {
    private Keys() {
    }

    static RPCHook hook(Fields request) {
        String accessKey = request.text("accessKey", System.getProperty("rocketpoll.accessKey", ""));
        String secretKey = request.text("secretKey", System.getProperty("rocketpoll.secretKey"));
        return accessKey.isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }
}
