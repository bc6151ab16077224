"""HTTP statuses of the kinds of errors.

The body (problem+json) carries the `kind` itself, so clients need not guess from the status.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

HTTP_STATUSES: Mapping[str, HTTPStatus] = MappingProxyType(
    {
        "invalid-input": HTTPStatus.BAD_REQUEST,
        "permission": HTTPStatus.FORBIDDEN,
        "not-found": HTTPStatus.NOT_FOUND,
        "no-such-row": HTTPStatus.NOT_FOUND,
        "conflict": HTTPStatus.CONFLICT,
        "expired": HTTPStatus.GONE,
        "collected": HTTPStatus.GONE,
        "purged": HTTPStatus.GONE,
        "corrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
        "rewound": HTTPStatus.INTERNAL_SERVER_ERROR,
        "unsupported": HTTPStatus.NOT_IMPLEMENTED,
        "storage": HTTPStatus.SERVICE_UNAVAILABLE,
        # The request may have been carried out: a client has to ask before it repeats it.
        "outcome-unknown": HTTPStatus.GATEWAY_TIMEOUT,
    }
)
