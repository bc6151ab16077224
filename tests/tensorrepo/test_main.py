"""The frame of the command line: help, exit codes, and what is told when something fails."""

from __future__ import annotations

from errno import EACCES, ENOENT, ENOSPC

import pytest
import typer
from typer.testing import CliRunner

from tensorrepo.cli.command_table import COMMANDS, GROUPS
from tensorrepo.cli.exit_codes import EXIT_CODES, guarded
from tensorrepo.cli.main import load_command
from tensorrepo.cli.parsing import usage_piece
from tensorrepo.repo.errors import CommitOutcomeUnknown, ConflictError, Error, error_classes
from tests.support.processes.shell import Shell


def ended(error: BaseException) -> tuple[int, str]:
    """How a command ends that raises `error`: exit code, standard error."""

    def fail() -> None:
        raise error

    single = typer.Typer()
    single.command()(guarded(fail))
    done = CliRunner().invoke(single, [])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("error_class", list(error_classes()), ids=lambda each: each.kind)
def test_every_kind_of_error_has_its_exit_code(error_class: type[Error]) -> None:
    error = (
        error_class("what", txn="t", generation=1)
        if error_class is CommitOutcomeUnknown
        else error_class("what")
    )
    code, told = ended(error)
    assert code == EXIT_CODES[error_class.kind]
    assert f"({error_class.kind})" in told
    assert "what" in told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(ENOSPC, "No space left on device"), 7),
        (PermissionError(EACCES, "Permission denied", "/x"), 6),
        (FileNotFoundError(ENOENT, "No such file", "/x"), 3),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("mistake"), 70),
    ],
)
def test_what_is_no_error_of_ours_ends_by_its_kind_without_a_traceback(
    error: BaseException, code: int
) -> None:
    found, told = ended(error)
    assert found == code
    assert "Traceback" not in told


def test_a_mistake_of_ours_says_that_it_is_one() -> None:
    assert "mistake of tensorrepo's" in ended(ZeroDivisionError("x"))[1]


def test_conflicts_are_listed_below_the_message() -> None:
    class Met:
        path = "datasets/[red]x"
        reason = "both replaced it"

    _, told = ended(ConflictError("cannot merge", (Met(),)))
    assert "datasets/[red]x: both replaced it" in told


def test_help_lists_every_command_in_its_panel(empty: Shell) -> None:
    shown = empty("--help")
    assert all(name.split()[0] in shown for name in COMMANDS)
    assert all(panel in shown for _, panel, _ in COMMANDS.values())


@pytest.mark.together
@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_commands(empty: Shell, group: str) -> None:
    shown = empty(group, "--help")
    inside = [name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")]
    assert inside
    assert all(name in shown for name in inside)


def test_no_command_shows_the_help_and_is_wrong_usage(empty: Shell) -> None:
    assert empty.run().exit_code == 2


@pytest.mark.together
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_ends_in_examples_of_it(empty: Shell, command: str) -> None:
    examples = empty(*command.split(), "-h").rpartition("Examples")[2].strip().splitlines()
    assert examples
    assert all(line.strip().startswith(f"tensorrepo {command}") or "redo" in line
               for line in examples)  # fmt: skip


@pytest.mark.together
@pytest.mark.parametrize("name", ["COCO", "YOLO", "WebDataset", "TFRecord", "HDF5", "LMDB"])
def test_the_help_of_add_names_the_formats_that_it_reads(empty: Shell, name: str) -> None:
    assert name in empty("add", "--help")


def test_a_mistyped_command_suggests_the_right_one(empty: Shell) -> None:
    assert "Did you mean commit" in empty.fails(2, "comit")


def test_a_mistyped_command_of_a_group_suggests_the_right_one(empty: Shell) -> None:
    assert "Did you mean ls" in empty.fails(2, "model", "lss")


def test_the_version_is_told(empty: Shell) -> None:
    assert empty("--version") == empty("version").splitlines()[0] + "\n"


def test_a_folder_to_work_in_that_is_not_there_is_named(empty: Shell) -> None:
    assert "no such folder" in empty.fails(3, "-C", "nowhere", "log")


def test_nothing_moves_on_the_screen_when_it_is_no_terminal(full: Shell) -> None:
    (full.folder / "a.txt").write_text("a")
    done = full.run("add", "a.txt", "--file", "a.txt")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        ("{PATH_OR_URL...}...", "PATH_OR_URL..."),
        ("{[REF:]NAME}", "[REF:]NAME"),
        ("{A|B}", "{A|B}"),
        ("[[VERSION]]", "[VERSION]"),
        ("[[REF:]NAME]", "[[REF:]NAME]"),
        ("[PATH]...", "[PATH]..."),
        ("[OPTIONS]", "[OPTIONS]"),
    ],
)
def test_usage_has_brackets_and_dots_once(piece: str, shown: str) -> None:
    assert usage_piece(piece) == shown


def test_no_usage_has_braces_but_around_alternatives() -> None:
    odd = []
    for name in COMMANDS:
        command = load_command(name)
        context = command.make_context(name, [], resilient_parsing=True)
        pieces = command.collect_usage_pieces(context)
        odd += [each for each in pieces if each[0] == "{" and "|" not in each]
    assert odd == []
