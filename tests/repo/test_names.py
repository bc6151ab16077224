"""The grammar of paths, refs and file names, against a corpus of names that hurt elsewhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import (
    check_file_name,
    check_path,
    check_ref,
    check_text,
    folded,
    is_path,
    path_key,
)

LONGEST = "/".join(["s" * 255] * 16)

GOOD_PATHS = [
    "a",
    "datasets/mnist",
    "models/resnet-50.v2_final",
    "runs/2026-11-20/loss.json",
    "A/b.C/d_e-f",
    "0",
    "_private",
    "a..b",
    "console",
    "com",
    "com10",
    "lpt0",
    "nullable/aux-data",
    "x.con",
    LONGEST,
]

BAD_PATHS = {
    # traversal
    "..": "starts with '.'",
    ".": "starts with '.'",
    "a/../b": "starts with '.'",
    "a/./b": "starts with '.'",
    "../etc/passwd": "starts with '.'",
    "/etc/passwd": "'/'",
    "a/": "'/'",
    "a//b": "'/'",
    "/": "'/'",
    "": "not empty",
    "a\\..\\b": "may be used",
    "C:/x": "may be used",
    "C:": "may be used",
    # escapes and separators in disguise
    "%2e%2e/x": "may be used",
    "a%2fb": "may be used",
    "a%00b": "may be used",
    "a\0b": "may be used",
    "a\nb": "may be used",
    "a\n": "may be used",
    "a b": "may be used",
    " a": "may be used",
    "a\u2044b": "may be used",  # fraction slash
    "a\uff0fb": "may be used",  # full-width slash
    "\uff0e\uff0e/a": "may be used",  # full-width dots
    # device names
    "nul": "device",
    "NUL": "device",
    "nul.txt": "device",
    "Con.tar.gz": "device",
    "a/prn/b": "device",
    "AUX.h": "device",
    "com1": "device",
    "LPT9.log": "device",
    # what shells and Windows take otherwise
    "-rf": "starts with '-'",
    "a/--force": "starts with '-'",
    ".git/config": "starts with '.'",
    ".tensorrepo": "starts with '.'",
    "a.": "ends with a dot",
    "a./b": "ends with a dot",
    "a...": "ends with a dot",
    "~root": "may be used",
    "$HOME": "may be used",
    "a:b": "may be used",
    "a*": "may be used",
    # unicode
    "caf\u00e9": "may be used",
    "cafe\u0301": "may be used",
    "\u202egnp.exe": "may be used",
    "a\u200bb": "may be used",
    "\u0430": "may be used",  # Cyrillic a
    "\uff41": "may be used",  # full-width a
    "K\u0130": "may be used",  # its lower case is two characters
    "\u212a": "may be used",  # Kelvin sign: lower-cases to k
    "\ud800": "may be used",
    "\U0001f600": "may be used",
    # size
    "s" * 256: "256 bytes",
    "a/" * 16 + "a": "17 segments",
    "a" * 100_000: "100000 bytes",
}


@pytest.mark.parametrize("path", GOOD_PATHS, ids=lambda path: path[:20])
def test_a_path_within_the_grammar_is_given_back_as_it_is(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(("path", "rule"), BAD_PATHS.items(), ids=lambda text: ascii(text)[:20])
def test_a_path_outside_the_grammar_is_refused_by_the_rule_it_breaks(path: str, rule: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(rule)):
        check_path(path)


@pytest.mark.parametrize("check", [check_path, check_ref, check_file_name])
@pytest.mark.parametrize("value", [None, 7, b"a/b", ["a"]])
def test_what_is_not_text_is_no_name(check, value) -> None:
    with pytest.raises(InvalidInputError, match="is text"):
        check(value)


def test_a_message_shows_no_more_than_the_start_of_a_long_name() -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_path("a" * 100_000)
    assert len(str(refused.value)) < 300


SEGMENTS = st.sampled_from(
    [*"aZ.-_", "..", "a.", ".a", "-a", "nul", "Nul.x", "com1", "com10", "a" * 255, "a" * 256, ""]
)


@given(st.lists(SEGMENTS, min_size=0, max_size=18).map("/".join) | st.text(max_size=12))
def test_the_short_form_of_the_grammar_agrees_with_the_one_that_explains(path: str) -> None:
    accepted = True
    try:
        check_path(path)
    except InvalidInputError:
        accepted = False
    assert accepted == is_path(path)


def test_a_folder_is_sorted_right_behind_an_entry_of_its_name() -> None:
    paths = ["a.x", "a-x", "a/b", "a", "A", "ab", "a/B/c"]
    assert sorted(paths, key=path_key) == ["A", "a", "a/b", "a/B/c", "a-x", "a.x", "ab"]


def test_paths_that_differ_in_case_fold_alike() -> None:
    assert folded("Data/Train") == folded("dATA/tRAIN")


GOOD_REFS = [
    "heads/main",
    "heads/feature/x",
    "heads/fix-#123",
    "tags/v1.0+cpu",
    "runs/lr=0.1/00001",
    "registry/resnet/production",
    "heads/user@host",
    "heads/abcdef12",
    "heads/a.b",
]
BAD_REFS = {
    "": "namespace",
    "main": "namespace",
    "HEAD": "namespace",
    "Heads/main": "namespace",
    "/heads/main": "namespace",
    "../heads/main": "namespace",
    "heads/": "'/'",
    "heads//a": "'/'",
    "heads/a/": "'/'",
    "heads/..": "starts with '.'",
    "heads/.a": "starts with '.'",
    "heads/-a": "starts with '-'",
    "heads/a..b": "range",
    "heads/a.": "ends with a dot",
    "heads/a.lock": ".lock",
    "heads/a b": "may be used",
    "heads/a~1": "may be used",
    "heads/a^": "may be used",
    "heads/a:b": "may be used",
    "heads/a?": "may be used",
    "heads/a*": "may be used",
    "heads/a[b": "may be used",
    "heads/a\\b": "may be used",
    "heads/a@{1}": "may be used",
    "heads/a\x7f": "may be used",
    "heads/a\n": "may be used",
    "heads/%2e%2e": "may be used",
    "heads/caf\u00e9": "may be used",
    "heads/\u202emain": "may be used",
    "heads/@": "something else",
    "heads/HEAD": "something else",
    "heads/" + "0123456789abcdef" * 4: "something else",
    "heads/" + "a" * 256: "256 bytes",
    "heads/" + "a/" * 16 + "a": "17 segments",
    "heads/" + "a" * 2000: "characters",
}


@pytest.mark.parametrize("name", GOOD_REFS)
def test_a_ref_name_within_the_rules_is_given_back_as_it_is(name: str) -> None:
    assert check_ref(name) == name


@pytest.mark.parametrize(("name", "rule"), BAD_REFS.items(), ids=lambda text: ascii(text)[:20])
def test_a_ref_name_that_means_trouble_is_refused_by_its_rule(name: str, rule: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(rule)):
        check_ref(name)


GOOD_FILE_NAMES = [
    "config.json",
    ".gitattributes",
    "-rf",
    "nul.txt",
    "with space.txt",
    "tokenizer/vocab (1).json",
    "caf\u00e9.txt",
    "\u05e9\u05dc\u05d5\u05dd.txt",  # right-to-left letters
    "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # a Persian word needs its joiner
    "\U0001f468\u200d\U0001f469.png",
    "a..b",
    "trailing.",
    "%2e%2e",
    "\u4e2d" * 85,
]
BAD_FILE_NAMES = {
    "": "empty",
    "/etc/passwd": "absolute",
    "..": "'..'",
    "a/../b": "'..'",
    "a/./b": "'..'",
    "a//b": "empty",
    "a/": "empty",
    "a\0b": "U+0000",
    "a\nb": "U+000A",
    "a\x1b[31m": "U+001B",
    "a\x85b": "U+0085",
    "a\u2028b": "U+2028",
    "\u202egnp.exe": "U+202E",
    "a\u2066b": "U+2066",
    "\udcff": "U+DCFF",
    "a\\b": "Windows",
    "C:x": "Windows",
    "file.txt:stream": "Windows",
    "cafe\u0301.txt": "NFC",
    "\u212b": "NFC",  # the Angstrom sign is an A with a ring
    "\u4e2d" * 86: "255 bytes",
    "/".join(["a" * 200] * 21): "at most 4096",
}


@pytest.mark.parametrize("name", GOOD_FILE_NAMES, ids=lambda text: ascii(text)[:20])
def test_a_file_name_is_data_and_may_be_nearly_anything(name: str) -> None:
    assert check_file_name(name) == name


@pytest.mark.parametrize(
    ("name", "rule"), BAD_FILE_NAMES.items(), ids=lambda text: ascii(text)[:20]
)
def test_a_file_name_that_leaves_its_folder_or_deceives_is_refused(name: str, rule: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(rule)):
        check_file_name(name)


def test_text_may_have_lines_only_where_lines_are_wanted() -> None:
    assert check_text("a\n\tb", "note", limit_bytes=10, lines=True) == "a\n\tb"
    with pytest.raises(InvalidInputError, match=r"note: character U\+000A"):
        check_text("a\nb", "note", limit_bytes=10, lines=False)


def test_text_is_limited_in_bytes_not_in_characters() -> None:
    assert check_text("\u00e9" * 5, "note", limit_bytes=10, lines=False)
    with pytest.raises(InvalidInputError, match="12 bytes, at most 10"):
        check_text("\u00e9" * 6, "note", limit_bytes=10, lines=False)
