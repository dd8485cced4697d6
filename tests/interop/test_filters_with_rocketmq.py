"""Our SQL92 filters and RocketMQ's give the same results for the same expressions and properties.

All expressions of a test go to one JVM. The test compares not only matches but each value (true,
false, NULL or an exception), or that both refuse the expression.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.messages import sql_expressions as made
from support.rocketmq import java_vectors
from support.rocketmq.java_programs import JavaProgram, java_program

from rmq_spark.wire.bodies.body_codec import decode_body
from rmq_spark.wire.bodies.clients import SubscriptionData
from rocketpoll.broker.filter.errors import FilterError
from rocketpoll.broker.filter.filter_limits import FilterLimits
from rocketpoll.broker.filter.sql_columns import evaluate_state, matching_rows
from rocketpoll.broker.filter.sql_parser import compile_sql
from rocketpoll.broker.filter.subscription import build_subscription_data

pytestmark = pytest.mark.interop

ANSWER_SECONDS_MAX = 120
STATES = ("FALSE", "TRUE", "NULL", "FAILED")
SINCE_5 = ("CONTAINS", "STARTSWITH", "ENDSWITH")

# Intentional differences: expressions that RocketMQ accepts, why we refuse them, and the limits
# that apply.
REFUSED_BY_US = {
    "a text of more than 4 KiB: what one subscription costs is bounded": (
        "a = 1 " + " " * 5000 + "AND b = 2",
        FilterLimits(expression_bytes_max=8_192),
    ),
    "nesting of more than 32 levels: RocketMQ takes any, until its stack is full": (
        "(" * 40 + "a = 1" + ")" * 40,
        FilterLimits(depth_max=60),
    ),
    "more than 256 values, properties and operators: each is work for each message": (
        " OR ".join(f"a = {number}" for number in range(100)),
        FilterLimits(nodes_max=1_000),
    ),
}

BY_HAND = """
a = 5 | a <> 5 | 5 = a | 5 <> a | a = b | a <> b | a = 'x' | 'x' = a | a = 5.5 | a = 5.0
5 = 5.0 | 5.0 = 5
a = 5L | a = 5l | a = 2147483648
a = -5 | -5 = a | a = --5 | a = - -5 | a = +5 | a = -2147483648 | a > -2147483648 | a = -a | -a > 5
-a IS NULL | a = -9223372036854775807
a = 9223372036854775807 | a = 9223372036854775808 | a = -9223372036854775808
a = 99999999999999999999
a > 5 | a > 5.5 | 5 < a | a > b | a >= b | a < b | a <= b | 5 > 5 | 5 >= 5.0 | 5.5 < 6 | a > 'x'
'x' < a
a > TRUE | TRUE > a | a > NULL | a > (b = 5)
a = TRUE | TRUE = a | a = FALSE | FALSE <> a | TRUE = TRUE | TRUE <> FALSE | TRUE = 5 | 5 = TRUE
TRUE = 'true' | 'true' = TRUE | 'x' = 5 | 5 = 'x'
a = NULL | NULL = a | a <> NULL | NULL = NULL | a IS NULL | a IS NOT NULL | 5 IS NULL | NULL IS NULL
(a = 5) IS NULL | (a = 5) IS NOT NULL
a IS | a IS NOT | a IS 5 | IS NULL | a IS NULL IS NULL | a IS NOT NULL = TRUE | a IS NULL > 5
(a IS NULL > 5) | a IS NULL NOT IN ('x')
TRUE | FALSE | NULL | NOT TRUE | NOT NULL | NOT a | NOT NOT a | a | +a | -a | (a) | ((a)) | 5
'x' | 5.5
-5 | NOT 5 | NOT 'x' | NOT -a | -TRUE | - (a = 5) = 5
NOT a = 6 | NOT a <> 6 | NOT (a = 6) | NOT a IS NULL | NOT a IN ('x') | NOT a > 5
NOT a BETWEEN 1 AND 5
NOT a CONTAINS 'x' | NOT a = b
a AND b | a OR b | a AND b = 5 | a = 5 AND 5 | a = 5 AND 'x' | 5 AND a | a = 5 AND TRUE
a = 5 OR NULL
a > 5 OR TRUE | TRUE OR a > 5 | FALSE AND a > 5
a > 5 AND FALSE | a > 5 OR b = 'x' | b = 'x' OR a > 5 | b = 'x' AND a > 5
a = 5 OR b = 5 AND _c = 5
(a = 5 OR b = 5) AND _c = 5
a BETWEEN 1 AND 5 | a NOT BETWEEN 1 AND 5 | a BETWEEN 5 AND 1 | a NOT BETWEEN 5 AND 1
a BETWEEN 1 AND 5.5
a BETWEEN 5 AND 5 | a BETWEEN -5 AND 5
a BETWEEN 5 AND -5 | a BETWEEN b AND 5 | a BETWEEN 1 AND b | a BETWEEN 'a' AND 'b'
a BETWEEN NULL AND 5
a BETWEEN 1 AND NULL | 5 BETWEEN 1 AND 6
'x' BETWEEN 1 AND 5 | a BETWEEN TRUE AND FALSE | a BETWEEN 1 OR 5 | a BETWEEN 1
a BETWEEN 9007199254740993 AND 9007199254740992.0 | a NOT 5
a BETWEEN 1 AND 5 AND b = 5 | -(a = 5) BETWEEN 1 AND 5 | a BETWEEN (1) AND (5)
(a = 1) BETWEEN 1 AND 2
a BETWEEN 1 AND 5 BETWEEN 1 AND 2
a IN ('x') | a IN ('x', '5') | a NOT IN ('x') | a IN () | a IN ('x',) | a IN (5) | a IN ('x' '5')
a IN 'x'
5 IN ('5') | 'x' IN ('x') | (a) IN ('x')
+a IN ('x') | -a IN ('x') | a IN ('x') = TRUE | a IN ('x') IN ('y')
a in('x','xyz','5','6','7','8')
a IN ('x' | a IN (b) | a IN (TRUE) | a IN ('')
a CONTAINS 'x' | a NOT CONTAINS 'x' | a CONTAINS '' | a NOT CONTAINS '' | a CONTAINS 5
a CONTAINS b
'xyz' CONTAINS 'y' | 5 CONTAINS '5' | NULL CONTAINS 'x'
a STARTSWITH 'x' | a NOT STARTSWITH 'x' | a ENDSWITH 'z' | a NOT ENDSWITH 'z'
a CONTAINS 'x' CONTAINS 'y'
(a > 5) NOT CONTAINS 'x' | a contains('x')
a = 5 b | a = 5 5 | a = 5) | a + 1 > 2 | a - 1 | a LIKE 'x%' | a = 5 AND | a = 5 OR | AND a | OR
a = | = 5
a = = 5 | a == 5 | a != 5 | a ! 5 | a = 5; | a = 5 # | a = 5 x #
a > = 5 | a < > 5 | a =< 5 | a => 5 | a >< 5 | a <=> 5 | a * 5 | a / 5 | a % 5 | a.b = 5
a-b = 5 | `a` = 5
"a" = 5 | [a] = 5 | @a = 5 | a@b = 5 | é = 5 | aé = 5 | a = é
a = 'it''s' | a = '' | a = '''' | a = '''''' | a = 'x | a = 'x'' | a = x' | a = 'x''' | a = 'é'
a = '5'
a = 'x' 'y' | a = 'x' ' | 'x' CONTAINS 'x''x'
a = 007 | a = 0L | a = 00 | a = 0 | a = 1L2 | a = 5Land b | a = 5and b = 5 | a = 5or b | a = 1.5L
a = 1.
a = .5 | a = . | a = 1..5 | a = 1.5.5 | a = 1e5 | a = 1e | a = 1e+
a = 1E-5 | a = 1e+5 | a = 5e-324 | a = 1e-400 | a = 1e400 | a = 0.0 | a > 0.0 | a > -0.0 | a = 00.5
a = 1.7976931348623159e308 | a = 0x10 | a = 1e5e5 | a = 5.e3
(a = 5 | a = 5) | ((a = 5) | () | ( ) | (a) = (5) | (a = 5) = (b = 5) | (a = 5) = TRUE
(a = 5) = 'true'
(a = 5) = 5 | (a = 5) = b | b = (a = 5) | (a = 5) <> b
a = b = _c | a = 5 = TRUE | a = 5 <> FALSE | a = (5 = 5) | a > 5 = TRUE | a > 5 > 6 | a = b > 5
a > 5 = b > 5 | TRUE = (a > 5) | a = 5 = 5 | +(a = 5) | +5 = a | + + a = 5
a = 5 -- comment | a = 5 -- | -- comment | a = -- 5 | a - | /* x */ a = 5 | a = 5 /* x
a /* ' */ = 5
a /**/ = 5 | a /***/ = 5 | a /* /* */ = 5 | a /*/ = 5 | a = 5 */
not a = 5 | a is null | a Is Not Null | a between 1 and 5 | true | nUlL | NOTa = 5 | ANDa = 5
a IN('x')
a IS NULLx | trueish = 5 | in = 5 | NULL = 5 | is IS NULL | $d9 = 5 | _c = 5
"""


class Answers:
    """Collects requests, and answers all of them by one JVM of one version."""

    def __init__(self, version: str, program: JavaProgram) -> None:
        self.version = version
        self._command = program.command("rocketpoll.filters.Main")

    def ask(self, requests: Sequence[dict[str, Any]]) -> list[Any]:
        """Return the answers; None for refused expressions."""
        run = subprocess.run(
            self._command,
            input="".join(json.dumps(request) + "\n" for request in requests),
            capture_output=True,
            encoding="utf-8",
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        answers = [json.loads(line) for line in run.stdout.splitlines()]
        assert len(answers) == len(requests)
        return [answer.get("answer") for answer in answers]

    def conditions(
        self, texts: Sequence[str], properties: Sequence[list[dict[str, str]]]
    ) -> list[Any]:
        """Return the value of each expression for each of its property maps."""
        pairs = zip(texts, properties, strict=True)
        return self.ask([{"sql": text, "properties": maps} for text, maps in pairs])

    def knows(self, text: str) -> bool:
        """Return whether this version has all features of an expression."""
        return self.version != "4.9.7" or not any(word in text.upper() for word in SINCE_5)


@pytest.fixture(scope="session", params=java_vectors.TRIED_VERSIONS)
def rocketmq(request) -> Answers:
    """Return RocketMQ's filter of each version."""
    return Answers(request.param, java_program("filters", request.param))


class Columns:
    def __init__(self, maps: list[dict[str, str]]) -> None:
        self._maps = maps

    def values(self, name: str) -> pa.StringArray:
        return pa.array([properties.get(name) for properties in self._maps], pa.string())


def ours(text: str, maps: list[dict[str, str]]) -> list[str] | None:
    """Return the results of our filter for each map alone, and for all of them together."""
    try:
        expression = compile_sql(text)
    except FilterError:
        return None
    states = [STATES[evaluate_state(expression.condition, properties)] for properties in maps]
    matches = [answer == "TRUE" for answer in states]
    assert [expression.evaluate(properties) for properties in maps] == matches, text
    assert matching_rows(expression, Columns(maps), len(maps)).tolist() == matches, text
    return states


def compare(rocketmq: Answers, texts: list[str], maps_of_each: list[list[dict[str, str]]]) -> int:
    """Compare both; return the number of valid expressions."""
    answers = rocketmq.conditions(texts, maps_of_each)
    different = [
        (text, answer, found)
        for text, maps, answer in zip(texts, maps_of_each, answers, strict=True)
        if (found := ours(text, maps)) != answer
    ]
    assert not different, f"{len(different)} differ, such as {different[0]}"
    return sum(answer is not None for answer in answers)


def test_handwritten_sql_expressions_are_valued_like_rocketmqs(rocketmq):
    texts = [text for text in re.split(r"\n| \| ", BY_HAND.strip()) if rocketmq.knows(text)]
    maps = [{}] + [{"a": value} for value in made.VALUES]
    random = Random(7)
    maps += [made.random_properties(random) for _ in range(20)]
    expressions = compare(rocketmq, texts, [maps] * len(texts))
    assert 100 < expressions < len(texts) - 100


@pytest.mark.wide
def test_random_sql_expressions_are_valued_like_rocketmqs(rocketmq):
    random = Random(11)
    texts = [made.written(made.random_condition(random), random) for _ in range(4_000)]
    texts = [text for text in texts if rocketmq.knows(text) and is_within_limits(text)]
    maps_of_each = [[made.random_properties(random) for _ in range(8)] for _ in texts]
    assert compare(rocketmq, texts, maps_of_each) == len(texts) > 1_000


def is_within_limits(text: str) -> bool:
    try:
        compile_sql(text)
    except FilterError as error:
        return "at most" not in error.needed
    return True


def test_random_sql_tokens_are_refused_or_valued_like_rocketmqs(rocketmq):
    random = Random(13)
    texts = [
        text for text in (made.random_soup(random) for _ in range(20_000)) if rocketmq.knows(text)
    ]
    maps_of_each = [[made.random_properties(random) for _ in range(2)] for _ in texts]
    assert compare(rocketmq, texts, maps_of_each) > 1_000


@pytest.mark.parametrize("why", REFUSED_BY_US)
def test_expressions_over_our_limits_are_refused_on_purpose(rocketmq, why):
    text, larger = REFUSED_BY_US[why]
    maps = [{"a": "1", "b": "2"}]
    assert rocketmq.conditions([text], [maps]) == [["TRUE"]]
    with pytest.raises(FilterError, match="at most"):
        compile_sql(text)
    assert compile_sql(text, larger).evaluate(maps[0])


def test_rocketmq_4_9_does_not_know_the_text_operators_of_5(rocketmq):
    answers = rocketmq.conditions(
        ["a CONTAINS 'x'", "contains = 'x'"], [[{"a": "x", "contains": "x"}]] * 2
    )
    assert answers == ([["FALSE"], ["TRUE"]] if rocketmq.version == "4.9.7" else [["TRUE"], None])
    assert [ours("a CONTAINS 'x'", [{"a": "x"}]), ours("contains = 'x'", [{}])] == [["TRUE"], None]


SUB_STRINGS = (
    None, "", "*", "A", "A || B", "A||B", " A  ||\tB\n", "A|B", "A |||B", "||A", "A||", "||",
    "||||", "|| ||", " ", " * ", "A || A", "\u00a0A\u00a0", "\u3000", "中文 || 😀", "T#k1",
    "A && B", "x" * 300,
)  # fmt: skip


def test_subscription_text_is_parsed_or_refused_as_by_rocketmq(rocketmq):
    asked = [(text, kind) for text in SUB_STRINGS for kind in ("TAG", None, "SQL92", "another")]
    answers = rocketmq.ask([{"topic": "T", "text": text, "type": kind} for text, kind in asked])
    for (text, kind), answer in zip(asked, answers, strict=True):
        try:
            found = build_subscription_data("T", text, kind)
        except FilterError:
            found = None
        expected = None
        if answer is not None:
            data = json.dumps({**answer, "subVersion": 0}).encode()
            expected = decode_body(SubscriptionData, data)
        assert found == expected, (text, kind)
