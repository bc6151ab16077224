"""Routes that are built when they are first asked for: the service answers before most of them are.

What the framework makes of a route (its signature, the schemas of its parameters and of its answer)
takes a millisecond or two, and there are 270. Until somebody asks for one, only its path, methods
and name are known, which is what a router goes by. A background thread builds the rest once the
service answers (`build_routes`), so that whoever comes first seldom waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from fastapi.routing import APIRoute, APIRouter
from starlette.routing import BaseRoute, compile_path, get_name

_PAUSE_SECONDS: Final = 0.002  # in which requests get the interpreter
_OF_PATHS: Final = frozenset({"path_regex", "path_format", "param_convertors"})


class DeferredRoute(APIRoute):
    """A route that is whole as soon as somebody looks at more than where it is."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        name: str | None = None,
        methods: set[str] | list[str] | None = None,
        include_in_schema: bool = True,
        **more: Any,
    ) -> None:
        self._building = threading.RLock()
        self._left: dict[str, Any] | None = {
            "path": path, "endpoint": endpoint, "name": name, "methods": methods,
            "include_in_schema": include_in_schema, **more,
        }  # fmt: skip
        self.path, self.endpoint = path, endpoint
        self.name = get_name(endpoint) if name is None else name
        self.methods = {method.upper() for method in methods or ("GET",)}
        self.include_in_schema = include_in_schema

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet."""
        if name.startswith("__") or name in {"_left", "_building"}:
            raise AttributeError(name)
        if name in _OF_PATHS:  # a request is compared with the routes before its own, too
            self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        else:
            self.build()
        return object.__getattribute__(self, name)

    def build(self) -> None:
        """Make all of it, unless it is made."""
        with self._building:
            if self._left is not None:
                left, self._left = self._left, None
                super().__init__(**left)


def deferred_router(**settings: Any) -> APIRouter:
    """A router whose routes are built when they are asked for; settings as of `APIRouter`."""
    return APIRouter(route_class=DeferredRoute, **settings)


def build_routes(routes: Iterable[BaseRoute]) -> None:
    """Build what nobody asked for yet, with pauses; for a thread of its own."""
    for route in list(routes):
        if isinstance(route, DeferredRoute):
            route.build()
            time.sleep(_PAUSE_SECONDS)
