"""What the SDK and the command line offer of a stream is what its options declare."""

from __future__ import annotations

import inspect
import typing

import tensorrepo as tr
from tensorrepo.cli.stream import dataset_stream_command
from tensorrepo.formats.dataset.streaming.mix.blend import MixWish
from tensorrepo.formats.dataset.streaming.options import Sampling, StreamOptions, declared

OF_THE_MACHINE = {"self", "cache_dir", "cache_limit"}  # they make the page cache
RESOLVED = {"window", "rank", "world_size"}  # text becomes bytes, None is read from the environment
RECORDS = (StreamOptions, Sampling)
BY_KEYWORD = {
    option.keyword or name: (record, name, option)
    for record in RECORDS
    for name, option in declared(record).items()
    if option.keyword is not None
}


def default(record: type, name: str) -> object:
    return inspect.signature(record).parameters[name].default


def test_the_sdk_offers_every_option_with_its_default() -> None:
    offered = dict(inspect.signature(tr.Dataset.stream).parameters)
    assert offered.keys() - OF_THE_MACHINE == BY_KEYWORD.keys()
    shown = {keyword: offered[keyword].default for keyword in BY_KEYWORD.keys() - RESOLVED}
    assert shown == {key: default(*BY_KEYWORD[key][:2]) for key in shown}


def test_the_sdk_annotates_options_as_they_are_declared() -> None:
    written = {
        key: each.annotation
        for key, each in inspect.signature(tr.Dataset.stream).parameters.items()
    }
    hints = {record: typing.get_type_hints(record) for record in RECORDS}
    names = vars(inspect.getmodule(StreamOptions))
    for keyword in BY_KEYWORD.keys() - RESOLVED - {"transform"}:
        record, name, _ = BY_KEYWORD[keyword]
        assert eval(written[keyword], names) == hints[record][name], keyword


def test_the_sdk_describes_every_option() -> None:
    told = tr.Dataset.stream.__doc__ or ""
    assert [key for key in BY_KEYWORD if f"{key}: {BY_KEYWORD[key][2].text}." not in told] == []


def test_a_mix_offers_every_wish_with_its_default() -> None:
    offered = inspect.signature(tr.Mix).parameters
    assert offered.keys() == {*declared(MixWish), "streams", "seed", "epoch"}
    assert [
        name for name in declared(MixWish) if offered[name].default != default(MixWish, name)
    ] == []
    assert [
        name for name in declared(MixWish) if f"{name}: " not in (tr.Mix.__init__.__doc__ or "")
    ] == []


def test_the_command_line_has_the_defaults_of_the_options() -> None:
    offered = inspect.signature(dataset_stream_command).parameters
    same = offered.keys() & BY_KEYWORD.keys() - {"batch_size", "window"}  # one is needed, one text
    assert same == {"columns", "shuffle", "where", "balance", "pack", "bucket", "seed"}
    shown = {key: offered[key].default for key in same}
    assert shown == {key: default(*BY_KEYWORD[key][:2]) for key in same}
