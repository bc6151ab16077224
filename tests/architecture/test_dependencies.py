"""What the package imports is what pyproject.toml asks for, and the tested versions are pinned."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.architecture.sources import ROOT, imports, project, sources

# Where a package is imported by another name than it is installed by.
INSTALLED_AS = {
    "PIL": "pillow", "cv2": "opencv-python-headless", "lance": "pylance", "sklearn": "scikit-learn",
    "yaml": "pyyaml", "google.protobuf": "protobuf", "google.auth": "google-auth",
    "argon2": "argon2-cffi", "markdown_it": "markdown-it-py", "multipart": "python-multipart",
    "azure.core": "azure-identity", "azure.identity": "azure-identity", "pynvml": "nvidia-ml-py",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _names(requirements: list[str]) -> set[str]:
    found = (_NAME.match(each) for each in requirements)
    return {match[0].lower().replace("_", "-") for match in found if match}


def _needed() -> set[str]:
    return _names(project()["project"]["dependencies"])


def _extras(*names: str) -> set[str]:
    extras = project()["project"]["optional-dependencies"]
    return {each for name in names or extras for each in _names(extras[name])}


def _installed_as(root: str, name: str) -> str:
    shared = ".".join(name.split(".")[:2])  # "google" and "azure" are shared by many
    return INSTALLED_AS.get(shared, INSTALLED_AS.get(root, root)).lower().replace("_", "-")


def _foreign(*, at_load: bool, but: str | None = None) -> dict[str, str]:
    """Distribution and one place of each foreign import; `at_load`: made when a module loads.

    Without those of files whose paths begin with `but`.
    """
    return {
        _installed_as(root, each.full): source.at(each.node, each.full)
        for source in sources()
        if but is None or not source.path.startswith(but)
        for each in imports(source)
        if (root := each.module.split(".")[0]) not in sys.stdlib_module_names
        and root not in ("tensorrepo", "")
        and (not at_load or not (each.late or each.typing_only))
    }


# Modules that users import by their names, whose classes are subclasses of an extra's.
_OF_EXTRAS = (
    "tensorrepo/dcp.py",
    "tensorrepo/integrations/dlio.py",
    "tensorrepo/integrations/lightning.py",
    "tensorrepo/integrations/pytorch_lightning.py",
    "tensorrepo/integrations/transformers.py",
    "tensorrepo/ray.py",
)


def test_what_loads_with_the_package_is_a_dependency() -> None:
    found = _foreign(at_load=True, but="api/")
    strange = {place for name, place in found.items() if name not in _needed()}
    assert {place for place in strange if not place.startswith(_OF_EXTRAS)} == set()


@pytest.mark.parametrize("path", _OF_EXTRAS)
def test_no_other_module_imports_one_that_needs_an_extra(path: str) -> None:
    module = path.removesuffix(".py").replace("/", ".")
    importers = [
        source.at(each.node, each.full)
        for source in sources()
        for each in imports(source)
        if module in (each.module, each.full)
    ]
    assert importers == []


def test_what_loads_with_the_service_is_of_its_extra() -> None:
    found = _foreign(at_load=True)
    allowed = _needed() | _extras("server")
    strange = {place for name, place in found.items() if name not in allowed}
    assert {place for place in strange if not place.startswith(_OF_EXTRAS)} == set()


def test_what_loads_later_is_a_dependency_or_an_extra() -> None:
    found = _foreign(at_load=False)
    allowed = _needed() | _extras(
        "torch",
        "lightning",
        "transformers",
        "jax",
        "gcp",
        "azure",
        "images",
        "plots",
        "sql",
        "aws",
        "sign",
        "hdf5",
        "keyring",
        "lance",
        "lmdb",
        "dlio",
        "gpu",
        "mount",
        "postgres",
        "ray",
        "server",
        "tfrecord",
        "demo",
    )
    assert {place for name, place in found.items() if name not in allowed} == set()


def test_every_dependency_is_imported_somewhere() -> None:
    assert _needed() - set(_foreign(at_load=False)) == set()


def test_the_tested_version_of_every_requirement_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = _names([line for line in lines if not line.startswith("#")])
    assert (_needed() | _extras() | {"pip", "setuptools"}) - pinned == set()


def test_constraints_pin_exact_versions_and_nothing_local() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pin = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")
    assert [line for line in lines if not line.startswith("#") and not pin.fullmatch(line)] == []
