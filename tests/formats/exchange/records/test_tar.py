from __future__ import annotations

from io import BytesIO

import pytest

from tensorrepo.formats.exchange.records import tar
from tensorrepo.repo.errors import InvalidInputError


def test_padding_is_read_to_its_end_and_no_bomb_of_zeros_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tar, "MAX_PADDING_BYTES", 1 << 17)
    assert list(tar.walk_members(BytesIO(bytes(1 << 17)), "a.tar")) == []
    with pytest.raises(InvalidInputError, match=r"a\.tar.*zeros after its end"):
        list(tar.walk_members(BytesIO(bytes(1 << 20)), "a.tar"))
