package rocketpoll.rebalance;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own strategies by name. */
final class Strategies {
    private Strategies() {
    }

    static AllocateMessageQueueStrategy of(Map<?, ?> request) {
        switch ((String) request.get("strategy")) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONFIG":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues(request.get("config")));
                return config;
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(texts(request.get("rooms"))));
                return rooms;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms());
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(((Number) request.get("virtualNodes")).intValue());
            default:
                throw new IllegalArgumentException(String.valueOf(request.get("strategy")));
        }
    }

    static List<MessageQueue> queues(Object given) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object each : (List<?>) given) {
            List<?> parts = (List<?>) each;
            queues.add(new MessageQueue((String) parts.get(0), (String) parts.get(1), ((Number) parts.get(2)).intValue()));
        }
        return queues;
    }

    static List<String> texts(Object given) {
        List<String> texts = new ArrayList<>();
        for (Object each : (List<?>) given) {
            texts.add((String) each);
        }
        return texts;
    }

    /** A room is what stands in front of the first @. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return room(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return room(clientId);
        }

        private static String room(String name) {
            int at = name.indexOf('@');
            return at < 0 ? "" : name.substring(0, at);
        }
    }
}
