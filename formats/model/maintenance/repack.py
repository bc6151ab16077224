"""Repacking of models in a repository that is in use.

Everything is stored and read back first. Then one record of the log says which placement took the
place of which: commits, tags and signatures stay as they are. What the old placements alone reached
becomes garbage.

Bases first, so that what is encoded against them knows their places. Memory is bounded by a few
packs: one tensor, or a part of one, is in hand at a time.

Source:
    docs/spec/log.md, "supersede"; docs/spec/model.md, "Placement".
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.model.delta.registry import CODECS
from tensorrepo.formats.model.layout.fingerprints import Fingerprint, frame_bytes
from tensorrepo.formats.model.layout.pack import LARGE_BYTES, MAX_DEPTH
from tensorrepo.formats.model.layout.placement import ChosenBase, Placement, encode_placement
from tensorrepo.formats.model.maintenance.repack_plan import (
    Measured,
    RepackPlan,
    RepackProblem,
    Scale,
    likely_bases,
    make_plan,
)
from tensorrepo.formats.model.maintenance.repack_stock import (
    Inventory,
    take_stock,
)
from tensorrepo.formats.model.maintenance.usage import Reached, models_at
from tensorrepo.formats.model.read.frames import tensor_chunks
from tensorrepo.formats.model.read.members import MemberCache
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.base_choice import WrittenBase
from tensorrepo.formats.model.write.encoding import (
    EncodingChoice,
    encode_frame,
    member_of,
)
from tensorrepo.formats.model.write.model_writer import locations_of
from tensorrepo.formats.model.write.packing import (
    PACK_BYTES,
    Packer,
    PackSlot,
    PackUploads,
    build_placement,
)
from tensorrepo.formats.model.write.tensor_chunks import (
    TensorChunk,
    TensorPart,
    each,
    read_chunk,
)
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import MOST_SUPERSEDED, LogEntry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.tables import RecordTable, Shown


def depths(bases: Sequence[Sequence[int]]) -> list[int]:
    """Through how many bases each of some tensors is read, at most.

    `bases` are the numbers of each one's, without circles. Takes time in proportion to them: what
    has three bases, which have the same three, has very many ways.
    """
    found = [-1] * len(bases)
    pending = list(range(len(bases)))
    while pending:
        one = pending[-1]
        unknown = [base for base in bases[one] if found[base] < 0]
        if unknown:
            pending += unknown
        else:
            found[one] = 1 + max((found[base] for base in bases[one]), default=-1)
            pending.pop()
    return found


class Restorer:
    """Stores the tensors of a stock anew."""

    def __init__(
        self,
        stock: Inventory,
        chosen: Sequence[Measured],
        pack_bytes: int,
        emit: Callable[[tuple[Buffer, ...]], Future[Digest]],
        pool: Executor,
    ) -> None:
        self._stock = stock
        self._chosen = chosen
        self._pack_bytes = pack_bytes
        self._pool = pool
        self._packer = Packer(pack_bytes, emit)
        self._slots: dict[int, list[PackSlot]] = {}

    def store_all(self, progress: Callable[[int], None]) -> None:
        """Store all tensors, those of one model side by side. `progress`: bytes of tensors."""
        done = 0
        depth = depths([one.option.bases for one in self._chosen])
        for number in sorted(range(len(depth)), key=lambda one: (depth[one], one)):
            self._store(number)
            done += self._stock.tensors[number].size_bytes
            progress(done)
        self._packer.flush()

    def placement(self, model: int) -> Placement:
        """Where the tensors of a model lie now."""
        numbers = self._stock.models[model]
        places = {
            Fingerprint(self._stock.tensors[one].fingerprint): locations_of(self._slots[one])
            for one in numbers
        }
        uses = Counter(
            self._stock.tensors[base].model
            for one in dict.fromkeys(numbers)
            for base in self._chosen[one].option.bases
        )
        chosen = [
            ChosenBase(digest_bytes(self._stock.entries[base].digest), "repack", count, None)
            for base, count in uses.most_common()
        ]
        return build_placement(places, chosen)

    def _store(self, number: int) -> None:
        reader, holding = self._stock.reader(number), self._stock.tensors[number]
        whole = frame_bytes(reader.type)
        # Equal shapes are cut alike: a base's member holds all frames of what needs it.
        step = max(1, self._pack_bytes // whole) * whole
        slots = []
        for start in range(0, holding.size_bytes, step):
            stop = min(start + step, holding.size_bytes)
            chunk = read_chunk(TensorPart(holding.name, reader, start, stop), self._pool)
            slots.append(self._pack(number, chunk, start // step))
        self._slots[number] = slots

    def _pack(self, number: int, chunk: TensorChunk, cut: int) -> PackSlot:
        chosen, holding = self._chosen[number], self._stock.tensors[number]
        codec = CODECS.get(chosen.codec or "")
        type_name = "" if codec is None else codec.base_type
        bases = tuple(
            WrittenBase(self._stock.reader(base), self._slots[base][cut], type_name)
            for base in chosen.bases
        )
        way = None if codec is None else EncodingChoice(codec, bases, chosen.params)
        encode = partial(encode_frame, chunk, way)
        encoded = list(each(encode, chunk.part.frames, chunk.part.size_bytes, self._pool))
        signature = holding.signature if cut == 0 else None
        draft = member_of(chunk, way, encoded, signature, self._pool)
        return self._packer.add(draft, large=holding.size_bytes >= LARGE_BYTES)


ALPHA: Final = 1.5
DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class RepackOptions:
    """What a repack is to achieve.

    Attributes:
        alpha: how many times as much as reading it whole reading a model may cost.
        depth: how many bases a read may pass through.
        paths: models below these alone; none: all. In the whole history of every ref.
        packs: models that have something in these packs alone; none: all.
        dry_run: measure and plan, and store nothing.
        actor: who does it, for the log.
        time_ns: when, for the log.
        threads: that encode.
    """

    actor: str
    time_ns: int
    alpha: float = ALPHA
    depth: int = DEPTH
    paths: Collection[str] = ()
    dry_run: bool = False
    threads: int = 4
    packs: frozenset[Digest] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.alpha < float("inf"):
            raise InvalidInputError(f"alpha {self.alpha}: expected 1 or more")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise InvalidInputError(f"depth {self.depth}: expected 0 to {MAX_DEPTH}")


@dataclass(frozen=True, slots=True, repr=False)
class RepackReport(Shown):
    """What was, or would be, done.

    Attributes:
        models: placements that were looked at.
        tensors: number of their tensors, each counted once.
        present_bytes: what packs take that they alone reach.
        planned_bytes: what tensors take by the plan, by samples.
        stored_bytes: bytes of the new packs; 0 where nothing was stored.
        superseded: old placement to new; empty: nothing changed.
        reclaimable: old packs that nothing reaches any more.
        reclaimable_bytes: bytes of the reclaimable packs.
        found_by: "grown", "repaired" or "kept", which algorithm gave the plan.
    """

    models: int
    tensors: int
    present_bytes: int
    planned_bytes: int
    stored_bytes: int
    superseded: dict[Digest, Digest]
    reclaimable: tuple[Digest, ...]
    reclaimable_bytes: int
    found_by: str

    @property
    def changed(self) -> bool:
        return bool(self.superseded)

    def to_table(self) -> RecordTable:
        """Bytes before and after, in a line or two."""
        what = f"{counted(self.tensors, 'tensor')} of {counted(self.models, 'model')}"
        sizes = f"{bytes_text(self.present_bytes)}, by the plan {bytes_text(self.planned_bytes)}"
        done = f"{bytes_text(self.stored_bytes)} stored" if self.changed else "nothing changed"
        return RecordTable((f"{what}: {sizes}; {done}",))


def repack_models(
    repository: RepositoryCore,
    options: RepackOptions,
    clock: Callable[[], float],
    progress: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
) -> RepackReport:
    """Store models anew, so that they take least within what reading them may cost.

    Args:
        repository: what to work on.
        options: what is to be achieved.
        clock: seconds of work done, to measure decoding by.
        progress: told what is being done ("measuring", "storing", "verifying"), and the bytes of
            tensors done, of how many.

    Raises:
        ConflictError: models were repacked by somebody else meanwhile. Nothing changed.
        CorruptError: a model cannot be read. Nothing changed.
    """
    pin = repository.log.refresh()
    found = models_of_history(repository, pin)
    chosen = [one for one in found if not options.paths or one.is_below(options.paths)]
    entries = [
        entry
        for model in chosen
        for entry in model.entries
        if not options.packs or _is_in(repository, entry, options.packs)
    ]
    writer = ObjectWriter(repository.objects, pin.state.graves)
    try:
        with ThreadPoolExecutor(options.threads) as pool:
            return _Run(repository, options, pin, writer, pool, clock, progress).run(entries)
    except BaseException:
        writer.abort()
        raise


def store_anew(
    repository: RepositoryCore,
    options: RepackOptions,
    pin: LogView,
    writer: ObjectWriter,
    entries: Sequence[Entry],
    clock: Callable[[], float],
    progress: Callable[[str, int, int], None],
) -> Iterator[tuple[Digest, Digest]]:
    """Store the tensors of some models in packs of their own, and read them back.

    Bases are chosen among these tensors alone. Nothing is appended to the log; arguments and errors
    are those of `repack_models`.

    Returns:
        Each placement, and the one that takes its place.
    """
    if not entries:
        return
    with ThreadPoolExecutor(options.threads) as pool:
        run = _Run(repository, options, pin, writer, pool, clock, progress)
        yield from run.store_anew(entries)


def _is_in(repository: RepositoryCore, entry: Entry, packs: frozenset[Digest]) -> bool:
    storage = entry.storage
    return storage is not None and any(
        link.digest in packs for link in repository.objects.get(storage).links
    )


def models_of_history(repository: RepositoryCore, pin: LogView) -> tuple[Reached, ...]:
    """The models of all commits that refs, or retained values of refs, lead to."""
    tips = {*pin.state.refs.values(), *pin.state.retained}
    commits = {commit.tree: digest for digest, commit in walk(repository.objects, tips)}
    return models_at(repository, {str(digest): tree for tree, digest in commits.items()})


@dataclass(frozen=True, slots=True)
class _Run:
    """One repack."""

    repository: RepositoryCore
    options: RepackOptions
    pin: LogView
    writer: ObjectWriter
    pool: ThreadPoolExecutor
    clock: Callable[[], float]
    progress: Callable[[str, int, int], None]

    def run(self, entries: Sequence[Entry]) -> RepackReport:
        stock = take_stock(self.repository.objects, entries)
        chosen, plan = self._plan(stock)
        old = [entry.storage for entry in stock.entries if entry.storage is not None]
        dead = self._alone(old)
        present = sum(dead.values())
        told = (len(old), len(stock.tensors), present, plan.stored_bytes)
        if not entries or plan.stored_bytes >= present:
            return RepackReport(*told, 0, {}, (), 0, plan.found_by)
        if self.options.dry_run:
            return RepackReport(*told, 0, {}, tuple(dead), present, plan.found_by)
        placements, stored = self._store(stock, chosen)
        superseded = {one: new for one, new in zip(old, placements, strict=True) if one != new}
        # What is equal to an old pack is no garbage.
        dead = {pack: size for pack, size in dead.items() if pack not in self.writer.own}
        freed = sum(dead.values())
        if stored >= present:
            return RepackReport(*told, 0, {}, (), 0, plan.found_by)
        self._verify(stock, entries, dict(zip(old, placements, strict=True)))
        self._append(superseded)
        return RepackReport(*told, stored, superseded, tuple(dead), freed, plan.found_by)

    def store_anew(self, entries: Sequence[Entry]) -> Iterator[tuple[Digest, Digest]]:
        """New placements of models, by the old ones."""
        stock = take_stock(self.writer, entries)
        chosen, _ = self._plan(stock)
        placements, _ = self._store(stock, chosen)
        old = [entry.storage for entry in stock.entries if entry.storage is not None]
        new = dict(zip(old, placements, strict=True))
        self._verify(stock, entries, new)
        yield from new.items()

    def _plan(self, stock: Inventory) -> tuple[list[Measured], RepackPlan]:
        scale = Scale(stock, self.pool, self.clock)
        size = sum(one.size_bytes for one in stock.tensors)
        measured, done = [], 0
        for number, candidates in enumerate(likely_bases(stock)):
            measured.append(scale.options(number, candidates))
            done += stock.tensors[number].size_bytes
            self.progress("measuring", done, size)
        problem = RepackProblem(
            tuple(tuple(one.option for one in options) for options in measured),
            tuple(stock.models),
            Fraction(self.options.alpha),
            self.options.depth,
            tuple(_present_option(options) for options in measured),
        )
        plan = make_plan(problem)
        return [one[at] for one, at in zip(measured, plan.choice, strict=True)], plan

    def _alone(self, old: Sequence[Digest]) -> dict[Digest, int]:
        """The packs, and their bytes, that nothing but these placements reaches."""
        objects = self.repository.objects
        packs: dict[Digest, int] = {}
        for storage in old:
            for link in objects.get(storage).links:
                packs[link.digest] = link.bytes
        superseded, state = set(old), self.pin.state
        for digest in gc_fence.closure(
            objects, state.roots(), state.supersedes, stop=superseded.__contains__
        ):
            packs.pop(digest, None)
        return packs

    def _store(self, stock: Inventory, chosen: Sequence[Measured]) -> tuple[list[Digest], int]:
        """New packs and placements, durable; the placements, and the bytes of the packs."""
        size = sum(one.size_bytes for one in stock.tensors)
        with ThreadPoolExecutor(1) as uploader:
            uploads = PackUploads(self.writer, uploader)
            restorer = Restorer(stock, chosen, PACK_BYTES, uploads.emit, self.pool)
            restorer.store_all(lambda done: self.progress("storing", done, size))
            made = [restorer.placement(model) for model in range(len(stock.models))]
        digests = [
            self.writer.put(Kind.PLACEMENT, encode_placement(one), one.links()).digest
            for one in made
        ]
        self.writer.flush()
        packs = {digest for one in made for digest in one.links()}
        return digests, sum(self.writer.describe(digest).bytes for digest in packs)

    def _verify(
        self, stock: Inventory, entries: Sequence[Entry], new: dict[Digest, Digest]
    ) -> None:
        """Read all tensors by their new placements: the old packs may be gone tomorrow."""
        sizes = {one.storage: size for one, size in zip(stock.entries, stock.sizes, strict=True)}
        renewed = {
            msgspec.structs.replace(one, storage=new[one.storage]): sizes[one.storage]
            for one in entries
            if one.storage is not None
        }
        size, done, cache = sum(renewed.values()), 0, MemberCache()
        for entry in renewed:
            model = open_model(self.writer, entry, cache)
            for name in model.tensors:
                chunks = tensor_chunks(model.tensor(name), self.pool)
                done += sum(len(chunk) for chunk in chunks)
                self.progress("verifying", done, size)

    def _append(self, superseded: dict[Digest, Digest]) -> None:
        """Say what takes whose place, in as many records as it takes: each pair stands alone."""
        said, names = dict(self.pin.state.supersedes), iter(sorted(superseded))
        while block := {old: superseded[old] for old in islice(names, MOST_SUPERSEDED)}:
            self._append_block(block, said)
            said |= block

    def _append_block(self, block: dict[Digest, Digest], said: Mapping[Digest, Digest]) -> None:
        txn, is_first = secrets.token_hex(16), len(said) == len(self.pin.state.supersedes)

        def decide(view: LogView) -> tuple[LogEntry, ...]:
            state = view.state
            if dict(state.supersedes) != said:
                so_far = "Nothing changed" if is_first else "What it had said by then stays"
                raise ConflictError(
                    f"{self.repository.url}: models were repacked by somebody else since this one "
                    f"began. {so_far}; run `tensorrepo model repack` again."
                )
            graves = gc_fence.graves_since(state, self.pin.generation)
            hits = gc_fence.condemned(self.repository.objects, self.writer.own, graves)
            gc_fence.store_again(self.writer, hits, state.graves, "a repacked model")
            data = {"placements": {str(old): str(new) for old, new in block.items()}}
            return (
                LogEntry(txn, "supersede", self.options.actor, self.options.time_ns, data=data),
            )

        self.repository.append(decide)


def _present_option(options: Sequence[Measured]) -> int | None:
    return next((at for at, option in enumerate(options) if option.is_present), None)
