"""How do SQLite and PostgreSQL hold one value alike?

SQLite has five types and orders text by its bytes; PostgreSQL has many and orders text as its
locale does. Each type here is spelled for both, so that a query gives the same rows in the same
order on either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Boolean, Double, Integer, LargeBinary, Text
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, TEXT
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy import Dialect
    from sqlalchemy.types import TypeEngine

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
NUL_SHOWN: Final = "␀"  # PostgreSQL's text holds any character but NUL


class Words(TypeDecorator[str]):
    """Text, ordered and compared by its code points. NUL is kept as the sign for it."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == POSTGRESQL:
            return TEXT(collation="C")  # as it is: the driver's own kind of text is VARCHAR
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else shown(value)


class Whole(TypeDecorator[int]):
    """An integer of 64 bits with a sign."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == SQLITE else BigInteger())


class Flag(TypeDecorator[bool]):
    """True or false; a number in SQLite, which has no truth."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == SQLITE else Boolean())

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> bool | int | None:
        return int(value) if value is not None and dialect.name == SQLITE else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:  # noqa: ARG002
        return None if value is None else bool(value)


class Real(TypeDecorator[float]):
    """A finite number of 64 bits. What may be NaN or infinite has a column `kind` beside it."""

    impl = Double
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        here = SqliteReal() if dialect.name == SQLITE else DOUBLE_PRECISION()
        return dialect.type_descriptor(here)


class SqliteReal(Double[float]):
    """DOUBLE under the one name that strict tables know."""

    __visit_name__ = "REAL"


Bytes = LargeBinary


def shown(text: str) -> str:
    """`text` as both databases can hold it."""
    return text.replace("\0", NUL_SHOWN) if "\0" in text else text
