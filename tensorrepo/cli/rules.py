"""Commands about trust: `rule` of branches, `signer`, `verify-signatures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import EXIT_CODES
from tensorrepo.cli.options import RepoCall, complete_branch, complete_ref_or_entry, sides
from tensorrepo.repo.changes import rules
from tensorrepo.repo.changes.expire import parse_keep
from tensorrepo.repo.changes.gc_collect import RETENTION_SECONDS
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.changes.refs import TAGS, tag_signatory
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.signatures import Signatory, commit_signatory, fingerprint
from tensorrepo.repo.log.branch_rules import BranchRule, KeepRule

PatternArgument = Annotated[
    str,
    Argument(
        metavar="BRANCH",
        help="A branch, or the beginning of names and *.",
        autocompletion=complete_branch,
    ),
]


def rule_ls_command(call: RepoCall) -> None:
    """List the rules of branches.

    Examples:
        tensorrepo rule ls
    """
    found = rules.rules_of(call.session.repository.log.refresh().state)
    call.show(
        found,
        {"branch": "pattern", "rule": lambda rule: "; ".join(rule.words())},
        document=BranchRule.to_json,
        empty="no branch has a rule: `tensorrepo rule set BRANCH` makes one",
    )


def rule_set_command(
    call: RepoCall,
    pattern: PatternArgument,
    push: Annotated[
        list[str] | None, Option("--push", metavar="ADDRESS", help="Who may move it; repeat.")
    ] = None,
    forward: Annotated[
        bool, Option("--forward", help="It moves forward only, and is never deleted.")
    ] = False,
    signed: Annotated[bool, Option("--signed", help="Each new commit must be signed.")] = False,
    signer: Annotated[
        list[str] | None,
        Option("--signer", metavar="NAME", help="By one of these; repeat. Implies --signed."),
    ] = None,
    check: Annotated[
        list[str] | None, Option("--check", metavar="NAME", help="It must pass; repeat.")
    ] = None,
    history: Annotated[
        str | None,
        Option("--history", metavar="KEEP", help="Commits that `gc` keeps: 30d, 100 or 30d,100."),
    ] = None,
) -> None:
    """Set the rule of a branch, in the place of the one that it has.

    With --history each `gc` gives up the other commits of the branch, as `expire` does. Nothing
    goes that the rule of another branch keeps; of several rules the longest name says what stays.

    Rules keep people from mistakes. Who can write to the store can pass them by, unless a server
    stands before it; `verify-signatures` shows who made what. What a check runs is told on each
    machine: `tensorrepo config check.NAME COMMAND`.

    Examples:
        tensorrepo rule set main --forward --signed
        tensorrepo rule set main --push ada@example.org --check tests
        tensorrepo rule set "release/*" --signer ada
        tensorrepo rule set nightly --history 30d,100
    """
    rule = BranchRule(
        pattern,
        pushers=tuple(push or ()),
        fast_forward=forward,
        signed=signed or bool(signer),
        signers=tuple(signer or ()),
        checks=tuple(check or ()),
        keep=None if history is None else parse_keep(history),
    )
    before = rules.set_rule(call.session.repository, rule, actor=call.session.author())
    if before == rule:
        before = None
    told = [f"{pattern}: {'; '.join(rule.words())}"]
    if before is not None:
        told.append(f"This replaces the rule that it had: {'; '.join(before.words())}")
    replaced = None if before is None else before.to_json()
    call.answer(rule.to_json() | {"replaced": replaced}, *told)


def rule_rm_command(call: RepoCall, pattern: PatternArgument) -> None:
    """Remove the rule of a branch.

    Examples:
        tensorrepo rule rm main
    """
    rules.remove_rule(call.session.repository, pattern, actor=call.session.author())
    call.answer({"removed": pattern}, f"{pattern} has no rule any more.")


def rule_retention_command(
    call: RepoCall,
    span: Annotated[
        str | None, Argument(metavar="SPAN", help="Such as 30d; none shows what holds.")
    ] = None,
    unset: Annotated[bool, Option("--unset", help="Forget the setting.")] = False,
) -> None:
    """Show or set how long `gc` keeps what branches and tags named before they were moved or gone.

    It holds for all who use the repository; `gc --retention` says otherwise for once. Until it is
    over, `undo`, `branch NAME COMMIT` and `reflog` lead back.

    Examples:
        tensorrepo rule retention
        tensorrepo rule retention 30d
    """
    repository = call.session.repository
    if span is not None and unset:
        raise InvalidInputError("a SPAN and --unset say different things: give one of them")
    if span is not None or unset:
        seconds = None if span is None else int(parse_span(span))
        rules.set_retention(repository, seconds, actor=call.session.author())
    found = rules.retention_seconds(repository.log.refresh().state)
    holds = RETENTION_SECONDS if found is None else found
    text = str(KeepRule(seconds=holds)) if holds else "0s"
    value = {"retention_seconds": holds, "default": found is None}
    call.answer(value, text if found is not None else f"{text}, as nobody set it")


def signer_ls_command(call: RepoCall) -> None:
    """List whose signatures count.

    They are those of the file that `signers.file` names in your settings, else those that the
    repository lists, which everybody who can write to the store can change.

    Examples:
        tensorrepo signer ls
    """
    repository = call.session.repository
    trusted = repository.policy.signers(repository.log.refresh().state)
    source = "repository" if repository.policy.allowed is None else "signers.file"
    records = [
        {"name": name, "fingerprint": fingerprint(key), "key": key, "source": source}
        for name, key in sorted(trusted.items())
    ]
    if call.as_json:
        output.json_lines(records)
    elif not records:
        output.note("no signers are known: `tensorrepo signer add NAME KEYFILE` lists one")
    else:
        output.table(
            ["name", "key", "listed by"],
            [[each["name"], each["fingerprint"], each["source"]] for each in records],
        )


def signer_add_command(
    call: RepoCall,
    name: Annotated[str, Argument(help="Whose key it is: an address does well.")],
    key: Annotated[str, Argument(help="A file that ends in .pub, or the key itself.")],
) -> None:
    """List a public key in the repository, as one whose signature counts.

    Examples:
        tensorrepo signer add ada@example.org ~/.ssh/id_ed25519.pub
    """
    text = key if key.startswith("ssh-") else _key_file(call.path(str(Path(key).expanduser())))
    repository = call.session.repository
    rules.add_signer(repository, name, text, actor=call.session.author())
    listed = rules.listed_signers(repository.log.refresh().state)[name]
    value = {"name": name, "fingerprint": fingerprint(listed), "key": listed}
    call.answer(value, f"{name} signs with {value['fingerprint']}.")


def _key_file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{path} is no file with a public key: {why}") from error


def signer_rm_command(
    call: RepoCall, name: Annotated[str, Argument(help="As `signer ls` shows it.")]
) -> None:
    """Forget a key: what was signed with it is by an unknown key from then on.

    Examples:
        tensorrepo signer rm ada@example.org
    """
    rules.remove_signer(call.session.repository, name, actor=call.session.author())
    call.answer({"removed": name}, f"{name} signs no more.")


def verify_signatures_command(
    call: RepoCall,
    ref: Annotated[
        str | None,
        Argument(
            metavar="REF|A..B",
            help="Which commits; else HEAD.",
            autocompletion=complete_ref_or_entry,
        ),
    ] = None,
) -> None:
    """Check the signature of each commit, the newest first.

    Exit code 5 where one is wrong, missing, or by a key that is nobody's.

    Examples:
        tensorrepo verify-signatures
        tensorrepo verify-signatures v1..main
    """
    session = call.session
    repository = session.repository
    both = sides([ref]) if ref else None
    tag = ref if ref and TAGS + ref in repository.log.refresh().state.refs else None
    found_tag = None if tag is None else tag_signatory(repository, tag)
    if found_tag is not None and call.as_json:
        signed_in = {"repository": found_tag.repository or repository.id}
        output.json_lines([_document("tag", ref or "", None, found_tag) | signed_in])
    elif found_tag is not None:
        output.line(f"tag {tag}  {found_tag}")
    tip = session.resolve(both[1] if both else ref).digest
    hidden = [session.resolve(both[0]).digest] if both else []
    allowed = repository.policy.signers(repository.log.refresh().state)
    counts = {"good": 0, "unknown-key": 0, "bad": 0, "none": 0}
    for digest, commit in walk(repository.objects, [tip], hidden=hidden):
        found = commit_signatory(commit, allowed)
        counts[found.state] += 1
        if call.as_json:
            output.json_lines([_document("commit", digest, commit.author, found)])
        else:
            output.line(f"{digest:.12}  {found}  {commit.message.splitlines()[0]:.60}")
    wrong = sum(counts.values()) - counts["good"]
    wrong += found_tag is not None and found_tag.state in ("bad", "unknown-key")
    if not call.as_json:
        output.note(f"{counts['good']} of {sum(counts.values())} signed by a key that counts")
    if wrong:
        raise Exit(EXIT_CODES["corrupt"])


def _document(kind: str, name: str, author: str | None, found: Signatory) -> dict[str, Any]:
    told = {"signature": found.state, "signer": found.name or None, "key": found.key or None}
    return {kind: name} | ({} if author is None else {"author": author}) | told
