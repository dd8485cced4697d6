"""SQL tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.filter.errors import FilterError
from rocketpoll.broker.filter.sql_parser import (
    END,
    FLOAT,
    INTEGER,
    KEYWORDS,
    NAME,
    TEXT,
    TokenStream,
)


def words(text):
    tokens = TokenStream(text)
    found = []
    while tokens.peek().kind != END:
        found.append(tokens.next_token())
    return [(token.kind, token.text) for token in found]


def test_sql_keywords_are_case_insensitive():
    assert words("NOT nOt NOTa AND_ in inn") == [
        ("NOT", "NOT"), ("NOT", "nOt"), (NAME, "NOTa"), (NAME, "AND_"), ("IN", "in"), (NAME, "inn"),
    ]  # fmt: skip
    assert [kind for kind, _ in words(" ".join(sorted(KEYWORDS)))] == sorted(KEYWORDS)


def test_sql_tokens_take_the_longest_match():
    assert words("a<=5<>6<b>=c") == [
        (NAME, "a"), ("<=", "<="), (INTEGER, "5"), ("<>", "<>"), (INTEGER, "6"), ("<", "<"),
        (NAME, "b"), (">=", ">="), (NAME, "c"),
    ]  # fmt: skip
    assert words("007 0L 12L 1.5.5 00.5 1e5e5 5Land") == [
        (INTEGER, "0"), (INTEGER, "0"), (INTEGER, "7"), (INTEGER, "0"), (NAME, "L"),
        (INTEGER, "12L"), (FLOAT, "1.5"), (FLOAT, ".5"), (FLOAT, "00.5"), (FLOAT, "1e5"),
        (NAME, "e5"), (INTEGER, "5L"), ("AND", "and"),
    ]  # fmt: skip


def test_sql_strings_may_contain_doubled_quotes():
    assert words("'it''s' '' ''''") == [(TEXT, "'it''s'"), (TEXT, "''"), (TEXT, "''''")]


def test_sql_tokens_skip_blanks_and_comments():
    assert words(" \t\r\n\f a -- b ' \r\n c /* d * / ** e */ f /**/ g /***/") == [
        (NAME, "a"), (NAME, "c"), (NAME, "f"), (NAME, "g"),
    ]  # fmt: skip


def test_sql_line_comment_without_a_line_end_is_two_minus_signs():
    assert words("a -- b") == [(NAME, "a"), ("-", "-"), ("-", "-"), (NAME, "b")]


def test_peeking_a_token_does_not_consume_it():
    tokens = TokenStream("a")
    assert tokens.peek() == tokens.peek() == tokens.next_token()
    assert tokens.next_token() == tokens.next_token()
    assert tokens.peek().describe() == "its end"


@pytest.mark.parametrize(
    ("before", "no_word"),
    [
        ("a ", "! b"), ("a ", "'x"), ("a 'x'", "'"), ("a ", "/* b"), ("a ", "\u00a0"), ("", "é"),
        ("a", ".b"), ("", "\x00"), ("a ", "\u017f"),
    ],
)  # fmt: skip
def test_invalid_sql_token_is_refused_at_its_position(before, no_word):
    tokens = TokenStream(before + no_word)
    for word in words(before):
        assert tokens.next_token()[:2] == word
    with pytest.raises(FilterError, match="needed a word of SQL92") as error:
        tokens.peek()
    assert error.value.at == len(before) + 1


@given(st.text())
def test_sql_tokenizer_returns_tokens_or_a_filter_error_for_any_text(text):
    try:
        found = words(text)
    except FilterError:
        return
    assert sum(len(word) for _, word in found) <= len(text)
