package rocketpoll.filters;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** An expression as a RocketMQ broker compiles and evaluates it. */
final class Conditions {
    private final Expression expression;

    Conditions(String sql) throws Exception {
        expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(sql);
    }

    /** What comes out: TRUE, FALSE, NULL, or FAILED for an exception, which a broker logs and takes for no match. */
    String evaluate(Map<?, ?> properties) {
        try {
            return String.valueOf(expression.evaluate(new Properties(properties))).toUpperCase();
        } catch (Exception e) {
            return "FAILED";
        }
    }

    private record Properties(Map<?, ?> properties) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            Map<String, Object> copy = new HashMap<>();
            properties.forEach((name, value) -> copy.put((String) name, value));
            return copy;
        }
    }
}
