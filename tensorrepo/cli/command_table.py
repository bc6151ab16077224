"""Table of all commands: what each is called, says of itself in a line, and is loaded from.

`tensorrepo --help` needs this table alone, so that it answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

START, DAILY, DATA, HISTORY, SHARE, MODELS, CARE = (
    "Start a repository", "Add, look at and commit", "Ask and change data",
    "Branches and history", "Exchange with other repositories", "Models and trainings",
    "Look after the repository",
)  # fmt: skip

# name, a group's before it: (one line of help, panel, module that is loaded when it is called)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("Make a repository and a workspace here.", START, "setup"),
    "clone": ("Copy a repository into a new folder, or to a URL.", START, "remotes"),
    "config": ("Show or set your name, address and other settings.", START, "setup"),
    "status": ("Show what is staged, what changed on disk, and where you are.", DAILY, "entries"),
    "add": ("Read a file or folder and stage it as a dataset, model or file.", DAILY, "staging"),
    "commit": ("Record what is staged.", DAILY, "commit"),
    "ls": ("List the entries of a commit.", DAILY, "entries"),
    "cat": ("Print an entry: rows of a dataset, tensors of a model, a file.", DAILY, "cat"),
    "show": ("Show one commit, or one entry of it.", DAILY, "diff"),
    "diff": ("Show what differs between two commits, or since the last one.", DAILY, "diff"),
    "rm": ("Stage the removal of an entry.", DAILY, "staging"),
    "mv": ("Stage another name for an entry; no bytes move.", DAILY, "staging"),
    "restore": ("Unstage, or stage an entry as it was at another commit.", DAILY, "staging"),
    "checkout": ("Switch, or write entries as ordinary files.", DAILY, "checkout"),
    "export": ("Write an entry in a foreign format.", DAILY, "checkout"),
    "mount": ("Show a commit as a read-only folder.", DAILY, "mount"),
    "unmount": ("Take a mounted commit away.", DAILY, "mount"),
    "sql": ("Ask datasets and the catalog in SQL.", DATA, "sql"),
    "dql": ("Select, cut, construct and evaluate models by a statement.", DATA, "dql"),
    "search": ("Look for rows near a vector, or that fit words.", DATA, "search"),
    "index ls": ("List the search indexes of a commit.", DATA, "index"),
    "index create": ("Make a search index of a column, or bring it up to date.", DATA, "index"),
    "report": ("Write one page on what is in a commit.", DATA, "report"),
    "update": ("Give rows of a dataset other values.", DATA, "dataset"),
    "delete": ("Delete rows of a dataset.", DATA, "dataset"),
    "blame": ("Show which commits gave a row of a dataset its values.", DATA, "diff"),
    "dataset ls": ("List the datasets of a commit.", DATA, "dataset"),
    "dataset column": ("Add, drop, rename or widen a column of a dataset.", DATA, "dataset"),
    "dataset set": ("Note properties of a dataset: a licence, a source, its key.", DATA, "dataset"),
    "dataset compact": ("Write the worn parts of a dataset anew.", DATA, "dataset"),
    "dataset adopt": (
        "Stage a dataset whose rows stay in the files that they are in.",
        DATA,
        "staging",
    ),
    "dataset stream": ("Stream a dataset as training would, and show how fast.", DATA, "stream"),
    "plan-pipeline": ("Say which steps of a training's input pay offline.", DATA, "plan_pipeline"),
    "view ls": ("List the views of a commit.", DATA, "sql"),
    "view show": ("Show what a view is of.", DATA, "sql"),
    "view create": ("Choose rows of a dataset by a query, and stage which.", DATA, "sql"),
    "view refresh": ("Ask the query of a view again, and stage the answer.", DATA, "sql"),
    "log": ("Show commits, the newest first.", HISTORY, "history"),
    "watch": ("Run a command for every new commit of a branch.", HISTORY, "watch"),
    "reflog": ("Show where a branch was, and how to go back there.", HISTORY, "history"),
    "branch": ("List, make, rename or delete branches.", HISTORY, "branches"),
    "switch": ("Put the workspace on another branch.", HISTORY, "branches"),
    "merge": ("Join another branch into this one.", HISTORY, "commit"),
    "tag": ("List, make or delete tags.", HISTORY, "branches"),
    "revert": ("Take back what one commit changed, as a new commit.", HISTORY, "commit"),
    "cherry-pick": ("Repeat here what commits changed elsewhere.", HISTORY, "commit"),
    "stash": ("Put changes aside, and bring them back.", HISTORY, "stash"),
    "bisect": ("Find the commit that broke something.", HISTORY, "bisect"),
    "undo": ("Take back your last change of this branch.", HISTORY, "branches"),
    "redo": ("Take back the last undo.", HISTORY, "branches"),
    "reset": ("Move this branch to another commit.", HISTORY, "branches"),
    "fetch": ("Bring commits of another repository here.", SHARE, "remotes"),
    "pull": ("Fetch, and merge into this branch.", SHARE, "remotes"),
    "push": ("Bring commits to another repository, and move its branches.", SHARE, "remotes"),
    "import": ("Import a repository of git, DVC or the Hub with its history.", SHARE, "imports"),
    "promote": ("Bring one model or dataset to another repository.", SHARE, "remotes"),
    "remote ls": ("List the repositories that have a name here.", SHARE, "remotes"),
    "remote add": ("Give another repository a name.", SHARE, "remotes"),
    "remote rm": ("Forget a remote.", SHARE, "remotes"),
    "remote rename": ("Give a remote another name.", SHARE, "remotes"),
    "bundle create": ("Write commits and all their data to one file.", SHARE, "bundle"),
    "bundle verify": ("Read all of a bundle, and check it.", SHARE, "bundle"),
    "bundle unbundle": ("Bring what is in a bundle here.", SHARE, "bundle"),
    "lineage": ("Show what something came from, and what came from it.", MODELS, "runs"),
    "runs ls": ("List trainings, by what they reached.", MODELS, "runs"),
    "runs show": ("Show what a training read, made and logged.", MODELS, "runs"),
    "runs import": ("Import trainings that TensorBoard was told of.", MODELS, "runs"),
    "runs compare": ("Compare trainings side by side.", MODELS, "runs"),
    "model ls": ("List the models of a commit.", MODELS, "model"),
    "model desc": ("Describe a model: layers, architecture, metrics, lineage.", MODELS, "model"),
    "model diff": ("Compare two models, and how far tensors moved.", MODELS, "model"),
    "model verify": ("Read all of a model and check every byte.", MODELS, "model"),
    "model similar": ("Rank the stored models by how like one they are.", MODELS, "model"),
    "model find": ("Find models by what their architecture has.", MODELS, "catalog"),
    "model donors": ("Rank models by how they begin like an architecture.", MODELS, "catalog"),
    "model owners": ("List the models that hold a tensor.", MODELS, "catalog"),
    "model add": ("Read a model from a file or folder, and stage it.", MODELS, "model_make"),
    "model slice": ("Stage a part of a model as a model of its own.", MODELS, "model_make"),
    "model construct": ("Stage a model of a new architecture.", MODELS, "model_make"),
    "model merge": ("Blend the weights of models, and stage the result.", MODELS, "model_make"),
    "model repack": ("Store models anew, in fewer bytes.", MODELS, "model_make"),
    "model export": ("Write a model in a foreign format.", MODELS, "checkout"),
    "registry ls": ("List the registered models.", MODELS, "registry"),
    "registry show": ("Show a registered model and its versions.", MODELS, "registry"),
    "registry create": ("Name a model before its first version.", MODELS, "registry"),
    "registry register": ("Make a model of a commit the next version.", MODELS, "registry"),
    "registry alias": ("Let an alias name a version, or move it.", MODELS, "registry"),
    "registry history": ("Show where an alias was.", MODELS, "registry"),
    "registry protect": ("Refuse to move an alias.", MODELS, "registry"),
    "registry describe": ("Say what a model or a version is.", MODELS, "registry"),
    "registry rm": ("Remove a version, or a model with all of them.", MODELS, "registry"),
    "rule ls": ("List the rules of branches.", CARE, "rules"),
    "rule set": ("Say who may move a branch, and what its commits need.", CARE, "rules"),
    "rule rm": ("Remove the rule of a branch.", CARE, "rules"),
    "rule retention": ("Show or set how long dropped branches are kept.", CARE, "rules"),
    "signer ls": ("List whose signatures count.", CARE, "rules"),
    "signer add": ("List a public key as one that counts.", CARE, "rules"),
    "signer rm": ("Forget a key.", CARE, "rules"),
    "verify-signatures": ("Check the signature of each commit.", CARE, "rules"),
    "serve": ("Serve repositories to others: REST, clones, pages.", SHARE, "serve"),
    "ui": ("Look at the repository in the browser.", SHARE, "ui"),
    "login": ("Log in to a server.", SHARE, "login"),
    "logout": ("Log out of a server.", SHARE, "login"),
    "token ls": ("List your tokens at a server.", SHARE, "login"),
    "token create": ("Make a token, for what it has to do alone.", SHARE, "login"),
    "token revoke": ("Make a token worthless.", SHARE, "login"),
    "user ls": ("List the users of a server.", SHARE, "accounts"),
    "user add": ("Make an account.", SHARE, "accounts"),
    "user change": ("Change an account, or disable it.", SHARE, "accounts"),
    "user rm": ("Remove an account.", SHARE, "accounts"),
    "user password": ("Set a password.", SHARE, "accounts"),
    "group ls": ("List groups and their members.", SHARE, "accounts"),
    "group add": ("Make a group.", SHARE, "accounts"),
    "group rm": ("Remove a group.", SHARE, "accounts"),
    "group join": ("Let a user join a group.", SHARE, "accounts"),
    "group leave": ("Let a user leave a group.", SHARE, "accounts"),
    "grant ls": ("List who may do what.", SHARE, "accounts"),
    "grant set": ("Let a user or group do something.", SHARE, "accounts"),
    "grant rm": ("Take a grant back.", SHARE, "accounts"),
    "audit export": ("Print a server's audit log.", SHARE, "audit"),
    "audit verify": ("Prove that an audit log is whole.", SHARE, "audit"),
    "du": ("Show what entries take in the store, alone and shared.", CARE, "usage"),
    "gc": ("Delete what no branch, tag or run leads to.", CARE, "keep"),
    "expire": ("Give up the old commits of a branch for good.", CARE, "keep"),
    "purge": ("Erase rows, columns or tensors from all history.", CARE, "purge"),
    "fsck": ("Check that all data is there and whole.", CARE, "setup"),
    "doctor": ("Check the repository, this machine and the workspace, or a store.", CARE, "setup"),
    "bench": ("Emulate published trainings against a store.", CARE, "bench"),
    "resolve": ("Find out what became of a commit whose outcome was unknown.", CARE, "setup"),
    "cache ls": ("List what the caches of this machine hold.", CARE, "cache"),
    "cache trim": ("Make the caches of this machine smaller.", CARE, "cache"),
    "cache warm": ("Fetch what a stream of a dataset will read.", CARE, "cache"),
    "catalog status": ("Show how the SQL catalog stands to the repository.", CARE, "catalog"),
    "catalog upgrade": ("Bring the catalog's tables to this version's.", CARE, "catalog"),
    "catalog rebuild": ("Make the catalog anew.", CARE, "catalog"),
    "catalog verify": ("Compare the catalog with one made anew.", CARE, "catalog"),
    "version": ("Show versions of tensorrepo and what it stands on.", CARE, "setup"),
}

MODULE_OF = {name: f"tensorrepo.cli.{module}" for name, (_, _, module) in COMMANDS.items()}

# name: extra that it needs
EXTRA_OF = dict.fromkeys(("serve", "ui", "audit export", "audit verify"), "server")

# name: (one line of help, panel)
GROUPS: dict[str, tuple[str, str]] = {
    "audit": ("Who did what at a server, and the proof of it.", SHARE),
    "bundle": ("Commits and all their data in one file.", SHARE),
    "cache": ("Look after the caches of this machine, and fill them early.", CARE),
    "catalog": ("Look after the SQL catalog, which is a cache.", CARE),
    "dataset": ("Adopt, describe, compact and stream datasets; change their columns.", DATA),
    "grant": ("Who may do what with repositories of a server.", SHARE),
    "group": ("Users of a server who may do the same.", SHARE),
    "index": ("Find rows by vectors and by words, without reading all of them.", DATA),
    "model": ("Describe, compare, cut and combine models.", MODELS),
    "runs": ("Look at trainings: metrics, parameters, inputs, outputs.", MODELS),
    "view": ("Choose rows of datasets by queries, and keep which.", DATA),
    "remote": ("Name other repositories.", SHARE),
    "registry": ("Number versions of models, and name them by aliases.", MODELS),
    "rule": ("Protect branches: who moves them, what is kept.", CARE),
    "token": ("What programs prove themselves with at a server.", SHARE),
    "user": ("Accounts of a server.", SHARE),
    "signer": ("Look after the keys whose signatures count.", CARE),
}

_DATASETS = (
    "`tensorrepo dataset` has what is done to datasets; `add`, `cat` and `sql` stand at the top."
)

# What people type that is called otherwise here, or is not there yet.
ABSENT: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("web", "server"), "`tensorrepo serve` is the service, `tensorrepo ui` its pages."
    )
    | dict.fromkeys(("datasets", "data"), _DATASETS)
    | {
        word: f"`tensorrepo dataset {word}` does that."
        for word in ("adopt", "column", "compact", "set", "stream")
    }
    | dict.fromkeys(
        ("request", "requests", "merge-request", "mr", "pr"),
        "Merge requests are made on the pages of a `tensorrepo serve`, or by its REST API.",
    )
    | {
        "storage": "`tensorrepo du` tells of entries, `du --by ref|dataset|model` of history.",
        "prune": "`tensorrepo gc` deletes what nothing leads to, `expire` gives up old commits.",
        "verify": "`tensorrepo fsck --deep` reads and verifies all data, `model verify` a model.",
        "check": "`tensorrepo fsck` checks data, `tensorrepo doctor` the store and this machine.",
        "benchmark": "`tensorrepo bench` emulates a training, `dataset stream` reads your data.",
        "help": "`tensorrepo --help` lists all commands, `tensorrepo COMMAND --help` tells of one.",
        "rebase": "`tensorrepo cherry-pick` puts commits on another branch.",
        "unstage": "`tensorrepo restore --staged NAME` unstages.",
        "download": "`tensorrepo checkout REF NAME` writes files, `export` other formats.",
        "upload": "`tensorrepo add PATH --dataset NAME`, or --model, and `tensorrepo commit`.",
    }
)

# Commands whose answers may be long: a pager shows them on a terminal.
PAGED = frozenset(
    (
        "blame", "cat", "diff", "lineage", "log", "ls", "model desc", "model diff", "model ls",
        "reflog", "runs compare", "runs ls", "runs show", "show", "view show",
    )
)  # fmt: skip
