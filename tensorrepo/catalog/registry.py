"""Model registry of the SDK: versions of models by number, aliases that move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import ClassVar

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import check_instance, counted, flag, mapping, text
from tensorrepo.models.model import Model, model_at
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.registry.cards import (
    BRANCH,
    Card,
    CardText,
    card_at,
    check_registered_name,
    described,
    edit_card,
    with_words,
)
from tensorrepo.repo.registry.versions import (
    MODELS,
    SPACE,
    Registered,
    RegisteredVersion,
    VersionList,
    alias_history,
    delete_alias,
    delete_registered,
    delete_version,
    existing,
    find_version,
    protect_alias,
    protected_refs,
    register,
    registered,
    set_alias,
    versions,
)
from tensorrepo.repo.tables import Cell, RecordList, RecordTable, Shown, moment_text

__all__ = ["AliasMove", "RegisteredModel", "RegisteredVersion", "Registry"]


@dataclass(frozen=True, slots=True, repr=False)
class RegisteredModel(Shown):
    """A name under which versions of a model are registered.

    Attributes:
        versions: their numbers, ascending.
        aliases: name to the number of the version.
        protected: aliases that may neither move nor go.
    """

    name: str
    versions: tuple[int, ...] = ()
    aliases: Mapping[str, int] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> int | None:
        return self.versions[-1] if self.versions else None

    def to_table(self) -> RecordTable:
        """What it is, and which versions its aliases name."""
        title = f"registered model {self.name}: {counted(len(self.versions), 'version')}"
        said = [self.description] if self.description else []
        said += [f"{name}: {value}" for name, value in self.labels.items()]
        rows = tuple(
            (alias, number, "protected" if alias in self.protected else "")
            for alias, number in self.aliases.items()
        )
        return RecordTable((title, *said), ("alias", ">version", "") if rows else (), rows)


class RegisteredModelList(RecordList[RegisteredModel]):
    """Registered models, by name."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": "name",
        ">versions": lambda one: len(one.versions),
        ">latest": lambda one: one.latest or "",
        "aliases": lambda one: ", ".join(f"{name} = {at}" for name, at in one.aliases.items()),
        "description": "description",
    }


@dataclass(frozen=True, slots=True)
class AliasMove:
    """One move of an alias: to a version, or to none (it was removed; or that version was)."""

    time_ns: int
    actor: str
    version: int | None
    generation: int


class AliasHistory(RecordList[AliasMove]):
    """Moves of an alias, the newest first."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "when": lambda move: moment_text(move.time_ns),
        "by": lambda move: move.actor.partition(" <")[0],
        ">version": lambda move: "gone" if move.version is None else move.version,
        ">record": "generation",
    }


@dataclass(frozen=True, slots=True, repr=False)
class Registry(Shown):
    """See `Repository.registry`. A version is given by its number or by an alias."""

    context: Context

    def models(self) -> RegisteredModelList:
        """All registered models, by name."""
        view = self.context.core.log.refresh()
        known = registered(view)
        said = self._said(view)
        return RegisteredModelList(
            _model(view, name, known.get(name), said.get(name)) for name in sorted({*known, *said})
        )

    def get(self, name: str) -> RegisteredModel:
        """One registered model, as ``registry[name]`` too. Raises NotFoundError."""
        named(name)
        view = self.context.core.log.refresh()
        known = registered(view)
        about = card_at(self.context.core, view, name)
        if name not in known and (about is None or about.gone):
            existing(view, name)
        return _model(view, name, known.get(name), about)

    def create(
        self, name: str, *, description: str = "", labels: Mapping[str, str | None] | None = None
    ) -> RegisteredModel:
        """Name a model and say what it is, before its first version."""
        check_registered_name(named(name), MODELS.folder)
        return self._describe(name, None, description, labels)

    def register(
        self, name: str, source: Model | str, *, message: str = "", alias: str | None = None
    ) -> RegisteredVersion:
        """Make a model of a commit the next version.

        Args:
            name: name of the registered model; a new one begins with version 1.
            source: a model, or ``REF:models/NAME``.
            message: what is told about the version, for ever.
            alias: one to name it from then on, in the same step.

        Raises:
            ConflictError: the alias is protected. Nothing changed.
        """
        model = source if isinstance(source, Model) else self._source(source)
        if model.context.core.id != self.context.core.id:
            raise InvalidInputError(f"{model!r} is of another repository: pull it into this first")
        return register(
            self.context.core,
            named(name),
            model.commit,
            model.path,
            shelf=MODELS,
            author=self.context.author,
            message=text("message", message),
            alias=alias,
        )

    def versions(self, name: str) -> VersionList:
        """All versions, the newest first."""
        return VersionList(versions(self.context.core, named(name)))

    def version(self, name: str, which: int | str | None = None) -> RegisteredVersion:
        """One version; None: the newest. Raises NotFoundError, which names those there are."""
        return find_version(self.context.core, named(name), which)

    def model(self, name: str, which: int | str | None = None) -> Model:
        """The weights of a version, read when asked for; None: the newest."""
        return model_at(self.context, name, self.version(name, which).ref)

    def alias(self, name: str, alias: str, which: int | str) -> int:
        """Let an alias name a version, new or moved; gives the number.

        Raises:
            ConflictError: the alias is protected. Nothing changed.
        """
        core, actor = self.context.core, self.context.author
        return set_alias(core, named(name), alias, which, actor=actor)

    def delete_alias(self, name: str, alias: str) -> None:
        delete_alias(self.context.core, named(name), alias, actor=self.context.author)

    def protect(self, name: str, alias: str, *, on: bool = True) -> None:
        """Refuse to move or remove an alias; ``on=False`` allows it again."""
        core, actor = self.context.core, self.context.author
        protect_alias(core, named(name), alias, actor=actor, on=flag("on", on))

    def history(self, name: str, alias: str) -> AliasHistory:
        """Where an alias was, and who moved it: the newest first. Raises NotFoundError."""
        found = list(alias_history(self.context.core, named(name), alias))
        if not found:
            raise NotFoundError(f"{name} never had an alias {alias!r:.80}")
        return AliasHistory(
            AliasMove(move.entry.time_ns, move.entry.actor, number or None, move.generation)
            for move, number in found
        )

    def describe(
        self,
        name: str,
        which: int | str | None = None,
        *,
        description: str | None = None,
        labels: Mapping[str, str | None] | None = None,
    ) -> RegisteredModel:
        """Say what a model is, or what one of its versions is. `create` is for a new model.

        Raises:
            NotFoundError: there is no such model, or no such version.

        Args:
            name: name of the registered model.
            which: a version; None: the model itself.
            description: None keeps the one there is.
            labels: to set; a label that is None is removed.
        """
        if which is None:
            self.get(name)
        return self._describe(name, which, description, labels)

    def _describe(
        self,
        name: str,
        which: int | str | None,
        description: str | None,
        labels: Mapping[str, str | None] | None,
    ) -> RegisteredModel:
        number = None if which is None else self.version(name, which).number
        changes = dict(mapping("labels", labels, "texts")) if labels is not None else {}
        if description is not None:
            text("description", description)

        change = with_words(number, description, changes)
        edit_card(self.context.core, name, change, author=self.context.author)
        return self.get(name)

    def words(self, name: str, which: int | str) -> CardText:
        """What is said about one version: its description and labels."""
        number = self.version(name, which).number
        view = self.context.core.log.refresh()
        return (card_at(self.context.core, view, name) or Card()).of(number)

    def delete_version(self, name: str, which: int | str) -> None:
        """Remove a version; its number is not given again. One with an alias is refused."""
        number = self.version(name, which).number
        delete_version(self.context.core, name, number, actor=self.context.author)

    def delete(self, name: str) -> int:
        """Remove all versions and aliases of a model; gives how many versions there were."""
        return delete_registered(self.context.core, named(name), actor=self.context.author)

    def __getitem__(self, name: str) -> RegisteredModel:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in {model.name for model in self.models()}

    def __iter__(self) -> Iterator[str]:
        return (model.name for model in self.models())

    def to_table(self) -> RecordTable:
        """The registered models."""
        return replace(self.models().to_table(), lines=(repr(self)[1:-1],))

    def __repr__(self) -> str:
        return f"<registry of {self.context!r}>"

    def _said(self, view: LogView) -> dict[str, Card]:
        commit = view.state.refs.get(f"heads/{BRANCH}")
        found = () if commit is None else described(self.context.core, commit)
        return {name: about for name, about in found if not about.gone}

    def _source(self, text: str) -> Model:
        check_instance("source", text, str, "a model, or REF:models/NAME")
        ref, path = split_path(text)
        if path is None:
            raise InvalidInputError(f"{text!r}: expected REF:models/NAME, such as main:models/net")
        try:
            return model_at(self.context, path.removeprefix("models/"), ref)
        except NotFoundError as error:
            raise NotFoundError(f"nothing was registered: {error}") from error


def named(name: str) -> str:
    """The name of a registered model. Raises InvalidInputError for what is no text."""
    return text("the name of a registered model", name)


def _model(
    view: LogView, name: str, known: Registered | None, said: Card | None
) -> RegisteredModel:
    one, about = known or Registered(), said or Card()
    numbers = {alias: one.number_of(at) or 0 for alias, at in one.aliases.items()}
    start = f"{SPACE}{name}/alias/"
    return RegisteredModel(
        name,
        tuple(one.versions),
        numbers,
        tuple(ref.removeprefix(start) for ref in protected_refs(view) if ref.startswith(start)),
        about.entry.description,
        about.entry.labels,
    )
