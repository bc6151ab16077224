"""Registry cards: descriptions and labels of registered names and of their versions.

One JSON file a name, ``files/registry/<name>.json`` on the branch ``meta/registry``: texts
change, and their history is that branch's. Versions and aliases are refs, see `registry`.

Source:
    docs/spec/registry.md, section "Descriptions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import ConflictError, CorruptError, InvalidInputError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry, file_entry, iterate, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.json_rules import refuse_newer
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.names import check_path, check_text
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.typed_decoding import from_json

BRANCH: Final = "meta/registry"
FOLDER: Final = "files/registry/"
SUFFIX: Final = ".json"
VERSION: Final = 1
MAX_TEXT_BYTES: Final = 64 << 10
MAX_LABELS: Final = 1000

_TRIES = 20


class CardText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A description, and labels: names with texts, such as ``task: segmentation``."""

    description: str = ""
    labels: dict[str, str] = {}

    def with_changes(self, description: str | None, labels: Mapping[str, str | None]) -> CardText:
        """Other words; None keeps the description, and removes a label."""
        joined = {**self.labels, **labels}
        return CardText(
            self.description if description is None else description,
            {name: text for name, text in sorted(joined.items()) if text is not None},
        )


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of one file; `entry` is stored under the key ``model``.

    `last` is the largest number of a version that was deleted; `gone` tells that the name was
    removed, and that the file is there for that number alone.
    """

    version: int = VERSION
    entry: CardText = msgspec.field(default=CardText(), name="model")
    versions: dict[str, CardText] = {}
    last: int = 0
    gone: bool = False

    def of(self, number: int) -> CardText:
        return self.versions.get(str(number), CardText())


def card_path(name: str) -> str:
    return f"{FOLDER}{name}{SUFFIX}"


def check_registered_name(name: str, folder: str) -> str:
    """`name`, which can be registered: it is a path in `folder`, and its description has a file.

    Raises:
        InvalidInputError: it cannot be registered.
    """
    check_path(f"{folder}{name}")
    folders = name.split("/")[:-1]
    taken = next((each for each in folders if each.endswith(SUFFIX)), None)
    if taken is not None:
        raise InvalidInputError(
            f"nothing can be registered as {name!r:.100}: its folder {taken!r:.80} has the "
            f"name of the file that describes {taken.removesuffix(SUFFIX)!r:.80}. Choose a name "
            f"whose folders do not end in {SUFFIX}."
        )
    return name


def card_at(repository: RepositoryCore, view: LogView, name: str) -> Card | None:
    """What is said about a registered name at `view`; None where nothing ever was."""
    commit = view.state.refs.get(f"heads/{BRANCH}")
    if commit is None:
        return None
    objects = repository.objects
    entry = lookup(objects, read_commit(objects, commit).tree, card_path(name))
    return None if entry is None else _read(objects, entry)


def described(repository: RepositoryCore, commit: Digest) -> Iterator[tuple[str, Card]]:
    """Every name that `commit`, of branch `BRANCH`, says something about."""
    objects = repository.objects
    for path, entry in iterate(objects, read_commit(objects, commit).tree, FOLDER):
        if path.endswith(SUFFIX):
            yield path.removeprefix(FOLDER).removesuffix(SUFFIX), _read(objects, entry)


def edit_card(
    repository: RepositoryCore, name: str, change: Callable[[Card], Card], *, author: str
) -> Card:
    """Change what is said about a name: read, changed and committed anew when others were first.

    Raises:
        ConflictError: others were first too often. Nothing changed.
        InvalidInputError: a text is too long, or has characters that deceive.
    """
    path = card_path(name)
    for last in reversed(range(_TRIES)):
        with begin(repository, BRANCH) as transaction:
            entry = transaction.entry(path)
            changed = change(Card() if entry is None else _read(transaction.objects, entry))
            link = transaction.objects.put(Kind.BLOB, encode_card(changed))
            transaction.stage(path, file_entry(link))
            try:
                transaction.commit(f"Describe {name}", author=author)
            except ConflictError:
                if not last:
                    raise
            else:
                return changed
    raise AssertionError("the last try returns or raises")


def with_words(
    number: int | None, description: str | None, labels: Mapping[str, str | None]
) -> Callable[[Card], Card]:
    """A change for `edit_card`: other words about a version, or about the name; and it is there.

    None keeps the description, and removes a label.
    """

    def change(about: Card) -> Card:
        if number is None:
            words = about.entry.with_changes(description, labels)
            return msgspec.structs.replace(about, entry=words, gone=False)
        words = about.of(number).with_changes(description, labels)
        versions = {**about.versions, str(number): words}
        return msgspec.structs.replace(about, versions=versions, gone=False)

    return change


def encode_card(about: Card) -> bytes:
    """Content of the file: JSON, sorted, for people who look at the branch, too."""
    for words in (about.entry, *about.versions.values()):
        _check(words)
    return msgspec.json.format(msgspec.json.encode(about, order="sorted"), indent=2) + b"\n"


def decode_card(data: bytes | memoryview, where: str) -> Card:
    """Raises CorruptError, which names `where`, for what is no such file; for a newer one
    UnsupportedError.
    """
    refuse_newer(data, VERSION, where)
    try:
        content = from_json(data, Card)
        for words in (content.entry, *content.versions.values()):
            _check(words)
    except (msgspec.MsgspecError, InvalidInputError, RecursionError) as error:
        raise CorruptError(f"{where}: {error}") from error
    if content.version != VERSION:
        raise CorruptError(f"{where}: version {content.version}, this tensorrepo knows {VERSION}")
    return content


def _read(objects: ObjectSource, entry: Entry) -> Card:
    return decode_card(objects.get(entry.digest).payload, f"description {entry.digest:.12}")


def _check(words: CardText) -> None:
    check_text(words.description, "a description", limit_bytes=MAX_TEXT_BYTES, lines=True)
    if len(words.labels) > MAX_LABELS:
        raise InvalidInputError(f"{len(words.labels)} labels, at most {MAX_LABELS} are allowed")
    for name, text in words.labels.items():
        check_text(name, "the name of a label", limit_bytes=255, lines=False)
        check_text(text, f"label {name!r}", limit_bytes=MAX_TEXT_BYTES, lines=True)
