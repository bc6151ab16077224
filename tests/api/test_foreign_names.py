from __future__ import annotations

import pytest

from tensorrepo.api.access.grants import RESERVED, check_repository_name
from tensorrepo.repo.errors import InvalidInputError
from tests.support.servers.route_table import route_table, whole_app


def test_every_first_segment_of_a_route_is_reserved() -> None:
    first = {row.path.split("/")[1] for row in route_table(whole_app())}
    own = {segment for segment in first if segment and not segment.startswith("{")}
    assert own - RESERVED == set()


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_repository_is_called_like_a_route(name: str) -> None:
    with pytest.raises(InvalidInputError, match="means something else"):
        check_repository_name(name)
    with pytest.raises(InvalidInputError, match="means something else"):
        check_repository_name(f"{name.upper()}/photos")
