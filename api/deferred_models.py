"""FastAPI's models of OpenAPI, whose validators are built when a document is asked for.

Whoever imports FastAPI has 36 of them built, a tenth of a second of the processor, and no first
answer needs one. What imports this module before anything of FastAPI goes without. Pydantic takes
the setting over into classes that are defined meanwhile, and builds each once, behind a lock.
"""

from __future__ import annotations

from pydantic import BaseModel

_DEFERRED = "defer_build" in BaseModel.model_config
BaseModel.model_config.setdefault("defer_build", True)

import fastapi.openapi.models  # noqa: E402, F401

if not _DEFERRED:
    del BaseModel.model_config["defer_build"]  # models of others are built as they expect
