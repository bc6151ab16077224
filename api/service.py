"""The service: what every route works with, made once in each process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path

from tensorrepo.api.access.accounts import Accounts
from tensorrepo.api.access.callers import Caller, KnownCallers
from tensorrepo.api.access.gate import RepositoryAccess, enter
from tensorrepo.api.access.grants import Action
from tensorrepo.api.access.people import People
from tensorrepo.api.access.sessions import Sessions
from tensorrepo.api.access.sign_in import SignIn
from tensorrepo.api.audit.anchors import Anchors
from tensorrepo.api.audit.writer import AuditLog
from tensorrepo.api.content.catalogs import Catalogs
from tensorrepo.api.content.commit_content import (
    PROFILE_CACHE_BYTES,
    CommitContent,
    ContentMemory,
)
from tensorrepo.api.content.live_runs import LiveRuns
from tensorrepo.api.content.queries import SqlQueries
from tensorrepo.api.content.query_gate import QueryGate
from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.secret_keys import secret_key
from tensorrepo.api.events.hub import EventHub
from tensorrepo.api.housekeeping import Caches, Housekeeping
from tensorrepo.api.huggingface.rendered_files import CACHE_BYTES, RenderedFiles
from tensorrepo.api.huggingface.upload_spool import KEY as UPLOADS_KEY
from tensorrepo.api.huggingface.upload_spool import UploadSpool
from tensorrepo.api.live.hub import LiveHub
from tensorrepo.api.live.store import LivePoints
from tensorrepo.api.live.writer import LiveWriter
from tensorrepo.api.outbound.addresses import AllowedTargets
from tensorrepo.api.outbound.client import OutboundClient
from tensorrepo.api.outbound.delivery import Deliverer
from tensorrepo.api.outbound.webhooks import Webhooks
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.api.settings import Settings
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import PermissionDenied
from tensorrepo.repo.objects.cache import DiskCache


@dataclass(frozen=True, slots=True)
class Service:
    """A running service. It keeps nothing in memory that another process would need."""

    settings: Settings
    database: Database
    accounts: Accounts
    directory: Directory
    outbound: OutboundClient
    live: LiveRuns
    live_events: LiveHub
    memory: ContentMemory
    catalogs: Catalogs
    queries: SqlQueries
    sign_in: SignIn
    audit: AuditLog
    anchors: Anchors
    webhooks: Webhooks
    deliverer: Deliverer
    housekeeping: Housekeeping
    rendered: RenderedFiles
    spool: UploadSpool
    events: EventHub = field(default_factory=EventHub)

    @property
    def people(self) -> People:
        return self.accounts.people

    @property
    def sessions(self) -> Sessions:
        return self.sign_in.sessions

    @property
    def scratch(self) -> Path:
        """Folder for files while they are taken apart; what lies there is of no use later."""
        folder = self.settings.data / "scratch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def at(self, access: RepositoryAccess, revision: str) -> CommitContent:
        """What the commit that `revision` names holds. Raises NotFoundError as the gate does."""
        return CommitContent.of(access, revision, self.memory)

    def enter(self, caller: Caller, repository: str) -> RepositoryAccess:
        """The gate to a repository, see `access.gate.enter`."""
        return enter(self.directory, caller, repository)

    def require_admin(self, caller: Caller, repository: str) -> None:
        """Raises PermissionDenied unless the caller may administer a repository of that name."""
        if not caller.may(Action.ADMIN, repository, None):
            raise PermissionDenied(
                f"{caller.name} may not administer {repository}. Ask whoever runs this service."
            )

    def told(self, error: Exception, repository: str) -> str:
        """What callers are told of an error: nothing of where the service keeps things."""
        text = self.directory.without_place(str(error), repository)
        for place in (self.settings.storage_url, str(self.settings.data)):
            text = text.replace(place, "the service's storage")
        return text

    def close(self) -> None:
        self.housekeeping.close()
        self.live.writer.close()
        self.deliverer.close()
        self.outbound.close()
        self.anchors.close()
        self.audit.close()
        self.catalogs.close()
        self.directory.close()
        self.database.close()


def open_service(settings: Settings, environment: Mapping[str, str]) -> Service:
    """The service that `settings` describe; the repositories that they name are listed in it."""
    database = Database(settings.database_url)
    directory = Directory(database, settings, environment)
    directory.expire()
    for name, url in settings.repositories.items():
        directory.settle(name, url)
    callers = KnownCallers()
    accounts = Accounts(database, callers)
    audit = AuditLog(database)
    outbound = OutboundClient(AllowedTargets.parse(settings.outbound_allow))
    points = LivePoints(database)
    live = LiveRuns(points, LiveWriter(points, directory))
    webhooks = Webhooks(database, outbound)
    profiles = DiskCache(settings.data / "cache" / "profiles", PROFILE_CACHE_BYTES)
    rendered = DiskCache(settings.data / "cache" / "rendered", CACHE_BYTES)
    catalogs = Catalogs(settings.data, settings.database_url)
    key = partial(secret_key, database, UPLOADS_KEY)
    spool = UploadSpool(settings.data / "huggingface", key, part_bytes=settings.upload_part_bytes)
    gate = QueryGate(settings.queries, settings.queries_each)
    return Service(
        settings=settings,
        database=database,
        accounts=accounts,
        directory=directory,
        outbound=outbound,
        webhooks=webhooks,
        deliverer=Deliverer(webhooks, directory, outbound),
        memory=ContentMemory(profiles=profiles),
        sign_in=SignIn(settings, database, callers, accounts.people, outbound),
        audit=audit,
        anchors=Anchors(audit, database, directory, every_seconds=settings.audit_anchor_seconds),
        housekeeping=Housekeeping(directory, settings.data, Caches(rendered, profiles), spool),
        live=live,
        live_events=LiveHub(points),
        catalogs=catalogs,
        queries=SqlQueries(catalogs, gate, _limits(settings)),
        spool=spool,
        rendered=RenderedFiles(rendered, settings.data / "rendering"),
    )


def _limits(settings: Settings) -> QueryLimits:
    return QueryLimits(
        seconds=settings.query_seconds,
        memory_bytes=settings.query_memory_bytes,
        rows=settings.query_rows,
        bytes=settings.query_bytes,
        served_bytes=settings.query_memory_bytes,
    )
