"""Models of a repository, by a client: descriptions, tensors, files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.client.answers import FileAnswer, ModelAnswer, ModelDetailsAnswer, TensorAnswer
from tensorrepo.client.connection import Connection, one_segment, segment
from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError

_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelsClient:
    """See `RepositoryClient.models`. `ref`: branch, tag, digest or ``registry/NAME/v/N``."""

    connection: Connection
    base: str

    def list_models(self, *, ref: str = "main", prefix: str = "") -> Iterator[ModelAnswer]:
        """Models of a commit, by name."""
        query = {"ref": ref, "prefix": prefix, "limit": 1000}
        return self.connection.pages(f"{self.base}/models", ModelAnswer, **query)

    def get(self, name: str, *, ref: str = "main") -> ModelDetailsAnswer:
        """Layers, parameters, types, architecture, files, metrics and lineage."""
        return self.connection.get(self._path(name), ModelDetailsAnswer, ref=ref)

    def tensors(self, name: str, *, ref: str = "main") -> Iterator[TensorAnswer]:
        """Tensors by name, and how each is stored."""
        path = f"{self._path(name)}/-/tensors"
        return self.connection.pages(path, TensorAnswer, ref=ref, limit=1000)

    def tensor(
        self, name: str, tensor: str, *, rows: slice | None = None, ref: str = "main"
    ) -> NDArray[Any]:
        """A tensor as an array, or some of its rows.

        Element types that numpy lacks come as unsigned integers of the same bits.
        """
        span = (
            None if rows is None else f"{rows.start or 0}:{'' if rows.stop is None else rows.stop}"
        )
        path = f"{self._path(name)}/-/tensors/{one_segment(tensor)}"
        with self.connection.stream(path, ref=ref, rows=span) as answer:
            data = answer.read()
        return self._array(data, answer.headers)

    def _array(self, data: bytes, headers: Mapping[str, str]) -> NDArray[Any]:
        """The array whose type and shape `headers` tell."""
        shape = self.connection.decoded(headers.get("X-Tensor-Shape", ""), tuple[int, ...])
        element = TYPES.get(headers.get("X-Tensor-Dtype", ""))
        if element is None:
            raise self.connection.unexpected("it tells no element type that this client knows")
        try:
            return np.frombuffer(data, element.units).reshape(element.units_shape(shape))
        except ValueError as error:
            raise self.connection.unexpected(str(error)) from error

    def files(self, name: str, *, ref: str = "main") -> Iterator[FileAnswer]:
        """Files of a model by name, those that are made of its tensors included."""
        path = f"{self._path(name)}/-/files"
        return self.connection.pages(path, FileAnswer, ref=ref, limit=1000)

    def download_file(
        self, name: str, file: str, to: Path, *, ref: str = "main", overwrite: bool = False
    ) -> None:
        """Write a file of a model to `to`, byte for byte as it came.

        Raises:
            CorruptError: what arrived is not what was stored; nothing is left at `to`.
        """
        path = f"{self._path(name)}/-/files/{segment(file)}"
        self._download(path, to, {"ref": ref}, overwrite=overwrite)

    def download_safetensors(
        self,
        name: str,
        to: Path,
        *,
        tensors: Iterable[str] = (),
        ref: str = "main",
        overwrite: bool = False,
    ) -> None:
        """Write some tensors, or all, as a new safetensors file."""
        query = {"ref": ref, "tensor": [*tensors]}
        self._download(f"{self._path(name)}/-/safetensors", to, query, overwrite=overwrite)

    def _download(self, path: str, to: Path, query: dict[str, Any], *, overwrite: bool) -> None:
        with (
            self.connection.stream(path, **query) as answer,
            new_file(to, overwrite=overwrite) as temporary,
            temporary.open("wb") as file,
        ):
            mark = sha256()
            for piece in answer.iter_bytes(_PIECE_BYTES):
                mark.update(piece)
                file.write(piece)
            expected = answer.headers.get("X-Content-Sha256")
            if expected not in (None, mark.hexdigest()):
                raise CorruptError(
                    f"{answer.url}: expected SHA-256 {expected:.12}, found {mark.hexdigest():.12}. "
                    "Download it again."
                )

    def diff(
        self,
        name: str,
        before: str,
        *,
        ref: str = "main",
        before_name: str | None = None,
        measure: bool = False,
    ) -> dict[str, Any]:
        """What changed since the model of that name at `before`; `measure` says how far."""
        query = {"before": before, "before_name": before_name, "ref": ref, "measure": measure}
        found: dict[str, Any] = self.connection.get(f"{self._path(name)}/-/diff", dict, **query)
        return found

    def similar(self, name: str, *, ref: str = "main", every_ref: bool = False) -> dict[str, Any]:
        """ModelsClient that are like one, the nearest first."""
        path = f"{self._path(name)}/-/similar"
        found: dict[str, Any] = self.connection.get(path, dict, ref=ref, every_ref=every_ref)
        return found

    def card(self, name: str, *, ref: str = "main") -> str:
        """The README.md that came with a model; empty where none did."""
        return self.connection.text(f"{self._path(name)}/-/card", ref=ref)

    def _path(self, name: str) -> str:
        return f"{self.base}/models/{segment(name)}"
