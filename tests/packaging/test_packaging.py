"""What `pip install` gives a user: a wheel, an editable checkout, and what the archives hold.

Archives are built in a soak only; `make test` looks at what they are built from.
Nothing here needs a network: packages are built and installed without isolation, and the fresh
environments see this one's libraries (but not its tensorrepo) through a line in a .pth file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.architecture.sources import LAYERS, ROOT, project, sources
from tests.support.builders.native import why_nothing_is_compiled
from tests.support.processes.shared import made_once

FILES = ("pyproject.toml", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("__pycache__", "*.so")
# Modules that users of an extra import by their names.
OF_EXTRAS = {
    "tensorrepo.dcp",
    "tensorrepo.ray",
    *(
        f"tensorrepo.integrations.{name}"
        for name in ("dlio", "lightning", "pytorch_lightning", "transformers")
    ),
}
MODULES = [
    source.module
    for source in sources()
    if source.module not in OF_EXTRAS and source.layer != "api"  # which is the extra "server"
]
OPTIONAL = {"torch", "PIL", "cv2", "simplejpeg", "sklearn"}  # extras: no other module needs them

IMPORT_ALL = """
import importlib, json, sys
files = {name: importlib.import_module(name).__file__ for name in json.loads(sys.argv[1])}
print(json.dumps({"files": files, "loaded": sorted(sys.modules)}))
"""

SPAWN = """
import multiprocessing
from tensorrepo.repo.hashing.digests import object_digest

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(object_digest, [[b"x"]])[0])
"""


WHICH = "from tensorrepo.formats.native.rows import BEST; print(BEST.name)"

# What is built in C, where it can be.
NAMES = (
    "formats.native._codecs",
    "formats.native._kernels",
    "repo.backends._reading",
    "repo.backends._storing",
    "repo.changes._following",
    "repo.hashing._hashing",
)
LAYER_FILES = {
    path.relative_to(ROOT).as_posix()
    for layer in ("api", "formats", "repo")
    for path in (ROOT / layer).rglob("*.*")
}
PAGES = ("api/pages/static/", "api/pages/templates/")  # what pages are made of beside code
KERNELS = (
    {f"tensorrepo/{name.replace('.', '/')}.abi3.so" for name in NAMES}
    if why_nothing_is_compiled() is None
    else set()
)

# Here kernels are built twice and found; how fast they are is no question, and -O3 takes three
# times as long.
QUICKLY = "-O0"


def _run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _fresh_environment(folder: Path) -> Path:
    """The python of a new virtual environment that sees this one's libraries, not tensorrepo."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Only the .pth files of an environment's own site-packages are obeyed: the editable
    # tensorrepo of the libraries' folder stays unseen.
    libraries = sysconfig.get_paths()["purelib"]
    (folder / "lib" / version / "site-packages" / "libraries.pth").write_text(libraries + "\n")
    return folder / "bin" / "python"


def _install(python: Path, *what: str, cwd: Path, **environment: str) -> None:
    flags = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", *flags, *what]
    _run(*pip, cwd=cwd, **environment)


def _copy(folder: Path) -> None:
    for layer in LAYERS:
        shutil.copytree(ROOT / layer, folder / layer, ignore=BUILT)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what gets packaged: building leaves traces, and other tests read the tree."""
    return made_once(tmp_path_factory, "checkout", _copy)


@pytest.fixture(scope="module")
def archives(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that was built from that sdist."""

    def build(folder: Path) -> None:
        build = [sys.executable, "-m", "build", "--no-isolation", "-o", folder]
        _run(*build, cwd=checkout, CFLAGS=QUICKLY)

    folder = made_once(tmp_path_factory, "archives", build)
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(
    request: pytest.FixtureRequest,
    archives: dict[str, Path],
    checkout: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A python that has tensorrepo, and nothing of this checkout on its path."""

    def install(folder: Path) -> None:
        what = [str(archives[".whl"])] if request.param == "wheel" else ["-e", str(checkout)]
        _install(_fresh_environment(folder), *what, cwd=folder, CFLAGS=QUICKLY)

    return made_once(tmp_path_factory, f"installed-{request.param}", install) / "bin/python"


@pytest.mark.soak
def test_the_wheel_holds_every_module_and_nothing_else(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {
        source.path if source.layer == "tensorrepo" else f"tensorrepo/{source.path}"
        for source in sources()
    }
    kernels = {name for name in held if name.endswith(".so")}
    assert held - kernels == modules | {"tensorrepo/py.typed"} | {
        f"tensorrepo/{path}"
        for path in LAYER_FILES
        if path.endswith(".pyi") or path.startswith(PAGES)
    }
    assert kernels == KERNELS


@pytest.mark.soak
def test_one_wheel_serves_every_python_on_machines_like_this(archives: dict[str, Path]) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert archives[".whl"].stem.endswith(f"-cp311-abi3-{platform}")


@pytest.mark.soak
def test_without_a_compiler_the_installation_goes_on(tmp_path: Path) -> None:
    _copy(tmp_path / "checkout")
    python = _fresh_environment(tmp_path / "environment")
    _install(python, "--no-compile", "./checkout", cwd=tmp_path, CC="/there/is/none")
    assert _run(python, "-c", WHICH, cwd=tmp_path).strip() == "numpy"


@pytest.mark.soak
def test_the_wheel_holds_the_licence_and_the_command(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        meta = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
        command = wheel.read(meta["entry_points.txt"]).decode()
    assert "LICENSE" in meta
    assert "tensorrepo = tensorrepo.cli.main:main" in command


@pytest.mark.soak
def test_the_sdist_holds_what_it_takes_to_build_and_to_read(archives: dict[str, Path]) -> None:
    with tarfile.open(archives[".gz"]) as sdist:
        held = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    kernels = {path for path in LAYER_FILES if path.endswith((".c", ".h"))}
    needed = {source.path for source in sources()} | {*FILES, "tensorrepo/py.typed"} | kernels
    assert needed - held == set()


@pytest.fixture(scope="module")
def imported(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where each of our modules was found, and all that was loaded with them."""

    def ask(folder: Path) -> None:
        said = _run(installed, "-c", IMPORT_ALL, json.dumps(MODULES), cwd=Path("/"))
        (folder / "said.json").write_text(said)

    folder = made_once(tmp_path_factory, f"imported-{installed.parents[1].name}", ask)
    return {"python": installed, **json.loads((folder / "said.json").read_text())}


@pytest.mark.soak
def test_every_module_is_imported_from_the_installation(
    imported: dict[str, Any], checkout: Path
) -> None:
    homes = (str(imported["python"].parents[1]), str(checkout))
    assert [name for name, at in imported["files"].items() if not at.startswith(homes)] == []


@pytest.mark.soak
def test_what_was_built_is_used_from_the_installation(imported: dict[str, Any]) -> None:
    said = _run(imported["python"], "-c", WHICH, cwd=Path("/")).strip()
    assert said == ("native" if KERNELS else "numpy")


@pytest.mark.soak
def test_no_module_needs_an_extra_to_be_imported(imported: dict[str, Any]) -> None:
    assert OPTIONAL & set(imported["loaded"]) == set()


@pytest.mark.soak
def test_spawned_workers_find_the_package(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(SPAWN)
    assert len(_run(installed, script, cwd=tmp_path).strip()) == 64


@pytest.mark.soak
@pytest.mark.skipif(find_spec("tensorrepo.cli.main") is None, reason="no command line yet")
def test_the_command_says_its_version(installed: Path, tmp_path: Path) -> None:
    said = _run(installed.parent / "tensorrepo", "version", cwd=tmp_path)
    from_installation = _run(
        installed, "-c", "import tensorrepo; print(tensorrepo.__version__)", cwd=tmp_path
    )
    assert from_installation.strip() in said


def test_the_version_is_said_in_one_place() -> None:
    assert "version" in project()["project"]["dynamic"]
    assert "version" not in project()["project"]


def test_every_kernel_is_built_of_files_that_are_there_for_one_wheel() -> None:
    """What a build, which takes a minute, would find missing."""
    extensions = project()["tool"]["setuptools"]["ext-modules"]
    needed = {path for each in extensions for path in (*each["sources"], *each.get("depends", ()))}
    assert needed == {path for path in LAYER_FILES if path.endswith((".c", ".h"))}
    assert {each["name"] for each in extensions} == {f"tensorrepo.{name}" for name in NAMES}
    assert all(each["optional"] and each["py-limited-api"] for each in extensions)
