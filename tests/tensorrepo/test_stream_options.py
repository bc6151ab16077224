"""What the SDK and the command line offer of a stream is what its options declare."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.cli.stream import dataset_stream_command
from tensorrepo.formats.dataset.streaming.mix.blend import MixWish
from tensorrepo.formats.dataset.streaming.options import (
    Loading,
    Ranks,
    Sampling,
    StreamOptions,
    declared,
)
from tensorrepo.hints import STREAM
from tests.support.processes.shell import ADA

GROUPS = (Sampling, Ranks, Loading)


def default(record: type, name: str) -> object:
    return inspect.signature(record).parameters[name].default


def test_the_sdk_offers_every_option_with_its_default() -> None:
    offered = dict(inspect.signature(tr.Dataset.stream).parameters)
    del offered["self"]
    assert list(offered) == list(declared(StreamOptions))
    shown = {name: each.default for name, each in offered.items()}
    assert shown == {name: default(StreamOptions, name) for name in shown}


def test_the_sdk_annotates_options_as_they_are_declared() -> None:
    written = {
        key: each.annotation
        for key, each in inspect.signature(tr.Dataset.stream).parameters.items()
        if key not in {"self", "transform"}
    }
    hints = typing.get_type_hints(StreamOptions)
    names = vars(inspect.getmodule(StreamOptions))
    assert {key: eval(text, names) for key, text in written.items()} == {
        key: hints[key] for key in written
    }


def test_the_sdk_describes_every_option() -> None:
    told = tr.Dataset.stream.__doc__ or ""
    options = declared(StreamOptions)
    assert [name for name in options if f"{name}: {options[name].text}." not in told] == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_offered_by_its_name_and_describes_its_options(group: type) -> None:
    assert getattr(tr, group.__name__) is group
    told = inspect.getdoc(group) or ""
    assert [name for name in declared(group) if f"    {name}: " not in told] == []


def test_an_option_stands_in_one_group_only() -> None:
    names = [name for record in (StreamOptions, *GROUPS) for name in declared(record)]
    assert len(names) == len(set(names))


def test_a_mix_offers_every_wish_with_its_default() -> None:
    offered = inspect.signature(tr.Mix).parameters
    assert offered.keys() == {*declared(MixWish), "streams", "seed"}
    assert [
        name for name in declared(MixWish) if offered[name].default != default(MixWish, name)
    ] == []
    assert [
        name for name in declared(MixWish) if f"{name}: " not in (tr.Mix.__init__.__doc__ or "")
    ] == []


def test_the_command_line_has_the_words_and_defaults_of_the_options() -> None:
    offered = inspect.signature(dataset_stream_command).parameters
    known = {name: record for record in (StreamOptions, *GROUPS) for name in declared(record)}
    same = offered.keys() & known.keys()
    assert same >= {"columns", "shuffle", "seed", "where", "balance", "pack", "bucket", "decode"}
    same -= {"batch_size", "window"}  # one is needed, one text
    shown = {key: offered[key].default for key in same}
    assert shown == {key: default(known[key], key) for key in same}


@pytest.mark.parametrize("group", GROUPS)
def test_who_gives_an_option_of_a_group_to_the_stream_is_told_which_group(group: type) -> None:
    assert {name for name in declared(group) if name not in STREAM} == set()
    assert {STREAM[name].partition("=")[0] for name in declared(group)} == {group.__name__.lower()}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"where": "a > 1"}, r"no argument 'where': sampling=tr\.Sampling\(where="),
        ({"rank": 1}, r"no argument 'rank': ranks=tr\.Ranks\(rank="),
        ({"num_workers": 4}, r"loading=tr\.Loading\(workers="),
        ({"drop_last": True}, 'last="drop"'),
        ({"batchsize": 4}, "Did you mean batch_size"),
        ({"xyz": 4}, "no argument 'xyz'$"),
    ],
)
def test_an_argument_that_a_stream_has_not_says_what_there_is(
    given: dict[str, object], told: str, tmp_path: Path
) -> None:
    repo = tr.init(tmp_path / "store", author=ADA)
    with repo.transaction("main", "one") as tx:
        tx.create_dataset("numbers", {"a": [1, 2]})
    dataset: typing.Any = repo.dataset("numbers")
    with pytest.raises(TypeError, match=told):
        dataset.stream(batch_size=1, **given)
    with pytest.raises(TypeError, match=r"by name: batch_size="):
        dataset.stream(["a"], batch_size=1)
