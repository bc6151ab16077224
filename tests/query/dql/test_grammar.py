"""DQL's grammar: what is printed parses to the same, and no text ends in anything but an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.query.dql import statements as dql
from tensorrepo.query.dql.grammar import MAX_DEPTH, MAX_TEXT_BYTES, parse_keep, parse_statement
from tensorrepo.repo.errors import InvalidInputError

# The statements of the paper, word for word.
SELECT = """select m1
where m1.name like "alexnet_%" and
      m1.creation_time > "2015-11-22" and
      m1["conv[1,3,5]"].next has POOL("MAX")"""
SLICE = """slice m2 from m1
where m1.name like "alexnet-origin%"
mutate m2.input = m1["conv1"] and
       m2.output = m1["fc7"]"""
CONSTRUCT = """construct m2 from m1
where m1.name like "alexnet-avgv1%" and
      m1["conv*($1)"].next has POOL("AVG")
mutate m1["conv*($1)"].insert = RELU("relu$1")"""
EVALUATE = """evaluate m2 from m1
vary config.base_lr in [0.1, 0.01, 0.001] and
     config.input_data in ["path1", "path2"]
keep top(5, m2["loss"] asc, 100)"""
OLD, NEW = "m1", "m2"

TEXTS = st.text(max_size=8)
NUMBERS = st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = TEXTS | NUMBERS | st.booleans() | st.none()
NAMES = st.sampled_from(
    ["a", "lr", "_x1", "input", "next", "every", "null", "asc", "select", "top"]
)
CONFIGS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


def metrics(variable: str) -> st.SearchStrategy[Any]:
    return st.builds(dql.MetricOf, st.just(variable), TEXTS)


OPERATIONS = st.builds(
    dql.Operation,
    st.sampled_from(["POOL", "conv", "Linear", "x"]),
    st.none() | TEXTS,
    st.dictionaries(
        NAMES, PLAIN | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple), max_size=2
    ).map(lambda found: tuple(found.items())),
)
NODES = st.builds(
    dql.Nodes,
    st.just(OLD),
    TEXTS,
    st.lists(st.sampled_from(["next", "prev"]), max_size=3).map(tuple),
)
ATTRIBUTES = st.one_of(
    st.builds(
        dql.Compare,
        st.builds(dql.Attribute, st.just(OLD), st.sampled_from(dql.TEXTS)),
        st.sampled_from(dql.OPERATORS),
        TEXTS,
    ),
    st.builds(
        dql.Compare,
        st.builds(dql.Attribute, st.just(OLD), st.sampled_from(dql.NUMBERS)),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        NUMBERS,
    ),
    st.builds(
        dql.Compare,
        st.just(dql.Attribute(OLD, "creation_time")),
        st.sampled_from(["<", ">="]),
        st.sampled_from(["2015-11-22", "yesterday", "3 days ago"]),
    ),
)


def of_metrics(variable: str) -> st.SearchStrategy[Any]:
    compare = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
    among = st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)
    return st.builds(dql.Compare, metrics(variable), compare, NUMBERS) | st.builds(
        dql.Among, metrics(variable), among
    )


def joined(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(dql.Not, inner),
            st.builds(dql.And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(dql.Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=6,
    )


CONDITIONS = joined(ATTRIBUTES | of_metrics(OLD) | st.builds(dql.Has, NODES, OPERATIONS))
SCOPES = st.builds(
    dql.ModelScope,
    st.just(OLD),
    st.none() | st.just(dql.EVERY) | TEXTS.filter(lambda text: text != dql.EVERY),
    st.none() | CONDITIONS,
)
VALUES = metrics(OLD) | st.builds(dql.Attribute, st.just(OLD), st.sampled_from(dql.ATTRIBUTES))
CHANGES = st.builds(dql.Change, TEXTS, st.just("delete"), st.none()) | st.builds(
    dql.Change,
    TEXTS,
    st.sampled_from(["insert", "replace"]),
    OPERATIONS.filter(lambda one: one.argument is not None),
)
VARIED = st.lists(
    st.builds(dql.Varied, CONFIGS, st.lists(PLAIN, min_size=1, max_size=3).map(tuple)),
    max_size=2,
    unique_by=lambda one: one.path,
).map(tuple)
COUNTS = st.integers(1, 10**9)
BEST = st.builds(dql.Best, COUNTS, TEXTS, st.booleans(), st.none() | COUNTS)
STATEMENTS = st.one_of(
    st.builds(
        dql.Select,
        SCOPES,
        st.none() | st.builds(dql.ModelOrder, VALUES, st.booleans()),
        st.none() | COUNTS,
    ),
    st.builds(dql.Slice, st.just(NEW), SCOPES, TEXTS, TEXTS, st.none() | TEXTS),
    st.builds(
        dql.Construct,
        st.just(NEW),
        SCOPES,
        st.lists(CHANGES, min_size=1, max_size=3).map(tuple),
        st.none() | TEXTS,
        st.none() | TEXTS,
    ),
    st.builds(dql.Evaluate, st.just(NEW), SCOPES, VARIED, BEST | joined(of_metrics(NEW))),
)


@given(STATEMENTS)
def test_what_is_printed_parses_to_the_same(statement: dql.Statement) -> None:
    assert parse_statement(str(statement)) == statement


@pytest.mark.parametrize("text", [SELECT, SLICE, CONSTRUCT, EVALUATE])
def test_the_statements_of_the_paper_parse(text: str) -> None:
    statement = parse_statement(text)
    assert str(statement) == " ".join(text.split())


def told(text: str) -> str:
    """The error of a text, or nothing: anything else is a failure of the test."""
    try:
        parse_statement(text)
    except InvalidInputError as error:
        return str(error)
    return ""


@given(st.text(max_size=60))
def test_any_text_is_answered(text: str) -> None:
    assert told(text).startswith("DQL, line ")


WORDS = st.sampled_from(
    [
        "select",
        "slice",
        "construct",
        "evaluate",
        "where",
        "and",
        "or",
        "not",
        "has",
        "like",
        "in",
        "keep",
        "top",
        "vary",
        "mutate",
        "at",
        "every",
        "m",
        "m1",
        "m2",
        ".",
        "[",
        "]",
        "(",
        ")",
        "=",
        "<",
        '"x"',
        "'y'",
        '"conv*($1)"',
        "3",
        "1e9",
        "name",
        "config",
        "insert",
        "delete",
        "next",
        "prev",
        "as",
        "init",
        "order",
        "by",
        "limit",
        "asc",
        "desc",
        "true",
        "null",
        ",",
        ";",
        "--",
        "\n",
        "\\",
        '"',
        "'",
        "�",
    ]
)


@given(st.lists(WORDS, max_size=30).map(" ".join))
def test_any_words_of_the_language_are_answered(text: str) -> None:
    told(text)


@given(st.sampled_from([SELECT, SLICE, CONSTRUCT, EVALUATE]), st.data())
def test_a_statement_that_is_damaged_is_answered(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    size, put = data.draw(st.integers(0, 5)), data.draw(st.text(max_size=2))
    told(text[:at] + put + text[at + size :])


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "the text ends; expected construct, evaluate, select or slice"),
        ("selct m", 1, 1, "'selct' was not expected; expected construct"),
        ("select m where", 1, 15, "the text ends; expected (, a name or not"),
        ('select m\nwhere m.nme = "x"', 2, 9, "models have no 'nme'. Did you mean name?"),
        ('select m where n.name = "x"', 1, 16, "no model is called 'n' here; expected 'm'"),
        ('select m where m.name = "x', 1, 25, "a text in quotes does not end in its line"),
        ("select m where m.name like 3", 1, 28, "'3' was not expected; expected a text in quotes"),
        ('select m where m.bytes > "x"', 1, 16, 'm.bytes is a number, and "x" is none'),
        ('select m where m.bytes like "x"', 1, 16, "like is of texts"),
        ("select m where m.name = 3", 1, 16, "m.name is a text"),
        ('select m where m.creation_time > "soon"', 1, 16, "'soon' is no moment"),
        ('select m where m["a"] has', 1, 26, "expected a name"),
        ('select m where m["a"].net has X()', 1, 23, "expected next or prev"),
        ("select m limit -1", 1, 16, "expected a whole number"),
        ('select m where m["x"] < 1e999', 1, 25, "no number is so large"),
        ('select m where m.name = "\\ud800"', 1, 25, "half of a surrogate pair"),
        ("select m limit 3 5", 1, 18, "expected ; or the end"),
        ('slice a from a mutate a.input = a["x"] and a.output = a["y"]', 1, 7, "is what is read"),
        (
            'slice a from b mutate a.input = b["x"] and a.input = b["y"]',
            1,
            44,
            "input is given twice",
        ),
        ('slice a from b mutate a.input = b["x"].next and a.output = b["y"]', 1, 33, "no next"),
        (
            'construct a from b mutate b["x"].insert = RELU()',
            1,
            27,
            "needs the name of the new node",
        ),
        ('construct a from b mutate b["x"].insert = R("r", k=1, k=2)', 1, 55, "k= is given twice"),
        ('construct a from b mutate b["x"].insert = R("r", k=[1.5])', 1, 50, "holds whole numbers"),
        ('evaluate a from b keep top(0, a["x"])', 1, 31, "would keep nothing"),
        ('evaluate a from b keep a.name = "x"', 1, 24, "expected metrics"),
        ('evaluate a from b keep b["x"] < 1', 1, 24, "no model is called 'b' here; expected 'a'"),
        (
            'evaluate a from b vary config.x in [1] and config.x in [2] keep a["x"] < 1',
            1,
            51,
            "twice",
        ),
    ],
)
def test_an_error_says_where_and_what_was_expected(
    text: str, line: int, column: int, words: str
) -> None:
    found = told(text)
    assert found.startswith(f"DQL, line {line}, column {column}: ")
    assert words in found
    shown, mark = found.split("\n")[1:]
    assert mark.index("^") - 2 == column - 1
    assert shown.strip() in text


def test_nesting_and_length_are_bounded() -> None:
    nested = f"{'not ' * MAX_DEPTH}m.bytes = 1"
    assert told(f"select m where {nested}") == ""
    assert f"deeper than {MAX_DEPTH}" in told(f"select m where not {nested}")
    deep = "(" * 20_000 + "m.bytes = 1" + ")" * 20_000
    assert told(f"select m where {deep}") == ""
    assert "at most 64 KiB" in told("select m" + " " * MAX_TEXT_BYTES)
    wide = " or ".join(["m.bytes = 1"] * 4000)
    assert len(parse_statement(f"select m where {wide}").source.where.conditions) == 4000  # type: ignore[union-attr]


def test_keywords_are_of_any_case_and_comments_are_passed_over() -> None:
    text = "SELECT m -- all of them\nWHERE m.bytes IN [1, 2] ORDER BY m.name DESC;"
    assert str(parse_statement(text)) == "select m where m.bytes in [1, 2] order by m.name desc"


def test_texts_are_in_either_quotes() -> None:
    one = parse_statement("select m where m.name = 'it''s \\ \"so\"'")
    assert one == parse_statement('select m where m.name = "it\'s \\\\ \\"so\\""')


def test_what_is_kept_parses_by_itself() -> None:
    assert parse_keep('top(3, m["f1"])') == dql.Best(3, "f1")
    assert str(parse_keep('m["a"] > 1 and not x["b"] = 2')) == 'm["a"] > 1 and not x["b"] = 2'
    with pytest.raises(InvalidInputError, match="column 8: 'm' was not expected"):
        parse_keep("select m")


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a statement of DQL"):
        parse_statement(3)  # type: ignore[arg-type]
