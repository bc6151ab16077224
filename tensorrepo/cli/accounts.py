"""Accounts of a server: `user`, `group` and `grant`."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli.login import ServerOption
from tensorrepo.cli.options import CommandCall
from tensorrepo.cli.prompts import secret_twice
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.server_calls import server_of

NameArgument = Annotated[str, Argument(metavar="NAME", help="A user.")]
GroupArgument = Annotated[str, Argument(metavar="GROUP", help="A group.")]
HolderArgument = Annotated[str, Argument(metavar="WHO", help="A user, or with --group a group.")]
RepositoryArgument = Annotated[
    str, Argument(metavar="REPOSITORY", help="team/photos, team/* or *.")
]
GroupOption = Annotated[bool, Option("--group", help="WHO is a group.")]
RefsOption = Annotated[
    str, Option("--refs", metavar="PATTERN", help="These refs alone: heads/main, heads/dev/*.")
]
EmailOption = Annotated[
    str | None, Option("--email", metavar="ADDRESS", help="What their commits name.")
]


def user_ls_command(call: CommandCall, server: ServerOption = None) -> None:
    """List the users of a server.

    Examples:
        tensorrepo user ls
    """
    with server_of(call.machine, server) as asked:
        found = list(asked.list("/users"))
    call.show(
        found,
        {
            "user": lambda one: one["name"],
            "address": lambda one: one["email"],
            "state": _state,
        },
        document=dict,
    )


def user_add_command(
    call: CommandCall,
    name: NameArgument,
    email: EmailOption = None,
    operator: Annotated[bool, Option("--operator", help="They run the server, too.")] = False,
    server: ServerOption = None,
) -> None:
    """Make an account. It may do nothing until something is granted to it.

    Examples:
        tensorrepo user add ann --email ann@example.org
    """
    new = {"name": name, "email": email or "", "is_operator": operator}
    with server_of(call.machine, server) as asked:
        made = asked.ask("POST", "/users", json=new)
    call.answer(made, f"{name} has an account. `tensorrepo grant set` says what they may do.")


def user_change_command(
    call: CommandCall,
    name: NameArgument,
    email: EmailOption = None,
    disable: Annotated[
        bool, Option("--disable", help="Sign them out, and let no token of theirs work.")
    ] = False,
    enable: Annotated[bool, Option("--enable", help="Take that back.")] = False,
    server: ServerOption = None,
) -> None:
    """Change an account, or disable it.

    Examples:
        tensorrepo user change ann --disable
    """
    if disable and enable:
        raise InvalidInputError("either --disable or --enable")
    change = {"email": email, "is_disabled": disable if disable or enable else None}
    with server_of(call.machine, server) as asked:
        changed = asked.ask("PATCH", f"/users/{name}", json=change)
    call.answer(changed, f"{name}: {_state(changed)}")


def user_rm_command(call: CommandCall, name: NameArgument, server: ServerOption = None) -> None:
    """Remove an account with its tokens and grants.

    Its name becomes free, and whoever gets it next looks like the author of what is there: `user
    change --disable` is the safer way.

    Examples:
        tensorrepo user rm ann
    """
    with server_of(call.machine, server) as asked:
        asked.ask("DELETE", f"/users/{name}")
    call.answer({"name": name, "removed": True}, f"{name} is removed.")


def user_password_command(
    call: CommandCall,
    name: NameArgument,
    old: Annotated[bool, Option("--old", help="Ask for the old one first: for your own.")] = False,
    server: ServerOption = None,
) -> None:
    """Set a password, for the web pages and `login --user`. It is asked for, or piped in.

    Examples:
        tensorrepo user password ann
    """
    before = secret_twice("Old password", again=False) if old else None
    change = {"password": secret_twice(f"New password of {name}"), "old": before}
    with server_of(call.machine, server) as asked:
        asked.ask("PUT", f"/users/{name}/password", json=change)
    call.answer({"name": name, "changed": True}, f"{name} has a new password.")


def group_ls_command(call: CommandCall, server: ServerOption = None) -> None:
    """List groups and their members.

    Examples:
        tensorrepo group ls
    """
    with server_of(call.machine, server) as asked:
        found = list(asked.list("/groups"))
    call.show(
        found,
        {
            "group": lambda one: one["name"],
            "members": lambda one: ", ".join(one["members"]),
            "description": lambda one: one["description"],
        },
        document=dict,
        empty="there are no groups: `tensorrepo group add NAME` makes one",
    )


def group_add_command(
    call: CommandCall,
    group: GroupArgument,
    description: Annotated[str, Option("--description", metavar="TEXT", help="Who they are.")] = "",
    server: ServerOption = None,
) -> None:
    """Make a group: users who may do the same.

    Examples:
        tensorrepo group add vision --description "Who trains on photos"
    """
    with server_of(call.machine, server) as asked:
        made = asked.ask("POST", "/groups", json={"name": group, "description": description})
    call.answer(made, f"There is a group {group}. `tensorrepo group join` lets users in.")


def group_rm_command(call: CommandCall, group: GroupArgument, server: ServerOption = None) -> None:
    """Remove a group with its grants. Its members stay.

    Examples:
        tensorrepo group rm vision
    """
    with server_of(call.machine, server) as asked:
        asked.ask("DELETE", f"/groups/{group}")
    call.answer({"name": group, "removed": True}, f"{group} is removed.")


def group_join_command(
    call: CommandCall, group: GroupArgument, name: NameArgument, server: ServerOption = None
) -> None:
    """Let a user join a group.

    Examples:
        tensorrepo group join vision ann
    """
    _answer_members(call, "PUT", group, name, server)


def group_leave_command(
    call: CommandCall, group: GroupArgument, name: NameArgument, server: ServerOption = None
) -> None:
    """Let a user leave a group.

    Examples:
        tensorrepo group leave vision ann
    """
    _answer_members(call, "DELETE", group, name, server)


def grant_ls_command(
    call: CommandCall,
    repository: Annotated[
        str | None, Argument(metavar="REPOSITORY", help="What is about this one; else all.")
    ] = None,
    server: ServerOption = None,
) -> None:
    """List who may do what.

    Examples:
        tensorrepo grant ls team/photos
    """
    path = "/grants" if repository is None else f"/repositories/{repository}/-/grants"
    with server_of(call.machine, server) as asked:
        found = list(asked.list(path))
    call.show(
        found,
        {
            "who": lambda one: (
                f"{one['holder']} (group)" if one["kind"] == "group" else one["holder"]
            ),
            "may": lambda one: one["action"],
            "repository": lambda one: one["repository"],
            "refs": lambda one: one["refs"],
        },
        document=dict,
        empty="nothing is granted to anybody: `tensorrepo grant set WHO ACTION REPOSITORY`",
    )


def grant_set_command(
    call: CommandCall,
    who: HolderArgument,
    action: Annotated[str, Argument(metavar="ACTION", help="read, write or admin.")],
    repository: RepositoryArgument,
    refs: RefsOption = "*",
    is_group: GroupOption = False,
    server: ServerOption = None,
) -> None:
    """Let somebody do something; admin includes write, and write includes read.

    Examples:
        tensorrepo grant set ann write team/photos
        tensorrepo grant set vision read "team/*" --group
    """
    if action not in {"read", "write", "admin"}:
        raise InvalidInputError(f"{action!r:.40} is no action: expected read, write or admin")
    grant = _grant(who, repository, refs, is_group=is_group) | {"action": action}
    with server_of(call.machine, server) as asked:
        made = asked.ask("PUT", "/grants", json=grant)
    call.answer(made, f"{who} may {action} {refs} of {repository}.")


def grant_rm_command(
    call: CommandCall,
    who: HolderArgument,
    repository: RepositoryArgument,
    refs: RefsOption = "*",
    is_group: GroupOption = False,
    server: ServerOption = None,
) -> None:
    """Take a grant back.

    Examples:
        tensorrepo grant rm ann team/photos
    """
    grant = _grant(who, repository, refs, is_group=is_group)
    with server_of(call.machine, server) as asked:
        asked.ask("DELETE", "/grants", params=grant)
    call.answer({**grant, "removed": True}, f"{who} has no grant for {refs} of {repository}.")


def _grant(who: str, repository: str, refs: str, *, is_group: bool) -> dict[str, str]:
    kind = "group" if is_group else "user"
    return {"kind": kind, "holder": who, "repository": repository, "refs": refs}


def _answer_members(
    call: CommandCall, method: str, group: str, name: str, server: str | None
) -> None:
    with server_of(call.machine, server) as asked:
        changed = asked.ask(method, f"/groups/{group}/members/{name}")
    call.answer(changed, f"{group}: {', '.join(changed['members']) or 'nobody'}")


def _state(user: dict[str, Any]) -> str:
    told = ["runs the server"] if user["is_operator"] else []
    told += ["password"] if user["has_password"] else []
    return ", ".join(["disabled"] if user["is_disabled"] else told) or "-"
