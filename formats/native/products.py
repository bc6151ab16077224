"""Predictions by low-rank products: base plus factors, rounded as the base's type is.

Factors are whole numbers of 24 bits and their rank is at most 64, so every sum of their products is
exact in 64-bit floats, on every machine and in whatever order. `NATIVE` does it in C (products.c
beside this) where it was built, `NUMPY` everywhere, with identical results; `BEST` is the first
that there is.

Source:
    docs/spec/model.md, section "Low rank".
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs
from tensorrepo.formats.native.thread_buffers import buffer_for

MANTISSA_BITS: Final = {"F32": 23, "BF16": 7, "F16": 10}
"""Types that are predicted, and their bits below the exponent."""


def widened(bits: NDArray[Any], name: str) -> NDArray[np.float64]:
    """The numbers of type `name` with these bits."""
    bits = _normal(bits, name)
    if name == "BF16":
        bits = bits.astype("<u4") << np.uint32(16)
    found: NDArray[np.float64] = bits.view("<f2" if name == "F16" else "<f4").astype(np.float64)
    return found


def narrowed(found: NDArray[np.float64], base: NDArray[Any], name: str) -> NDArray[Any]:
    """Rounded to the nearest, ties to even, as bits; the base's where there is no number."""
    if name == "BF16":
        single = found.astype("<f4").view("<u4")
        half = np.uint32(0x7FFF) + (single >> np.uint32(16) & np.uint32(1))
        bits = (single + half >> np.uint32(16)).astype("<u2")
    else:
        bits = found.astype("<f2" if name == "F16" else "<f4").view(base.dtype)
    bits, unknown = _normal(bits, name), np.isnan(found)
    return np.where(unknown, base, bits) if unknown.any() else bits


def _normal(bits: NDArray[Any], name: str) -> NDArray[Any]:
    """Subnormal numbers as zeros of their sign."""
    top = 1 << 8 * bits.itemsize - 1
    exponent = bits.dtype.type(top - (1 << MANTISSA_BITS[name]))
    below = (bits & exponent) == 0
    return np.where(below, bits & bits.dtype.type(top), bits) if below.any() else bits


_AT_ONCE: Final = 1 << 14  # numbers that are predicted together: what is computed stays in cache
_IN_C: Final = ("F32", "BF16")
Places: TypeAlias = tuple[NDArray[np.intp], ...]
# What spares rounding when a rank is judged; those of products.c.
_MOST_ABOVE: Final = 0.84
_TWICE: Final = 4.0
_FAR_ABOVE: Final = 100.0
_EXACT: Final = 1e-12


class Products:
    """Adds products to bases, in numpy. Numbers are bits of floats of a type's name."""

    name = "numpy"

    def step(
        self,
        base: NDArray[Any],
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        scale: float,
        skipped: int,
        name: str,
    ) -> NDArray[Any]:
        """The bits that a base and a product add up to.

        Args:
            base: numbers of rows; the first and the last may be cut.
            left: whole numbers, ``(rows, rank)``.
            right: whole numbers, ``(rank, columns)``.
            scale: power of two that the product is multiplied by.
            skipped: numbers of the first row that lie before the base.
            name: type of the numbers.
        """
        columns = right.shape[1]
        found, step = np.empty_like(base), max(1, _AT_ONCE // columns)
        with np.errstate(all="ignore"):
            for row in range(0, len(left), step):
                start = max(0, row * columns - skipped)
                stop = min(base.size, (row + step) * columns - skipped)
                product = (left[row : row + step] @ right).reshape(-1)
                before = start + skipped - row * columns
                moved = product[before : before + stop - start]
                moved *= scale
                part = base[start:stop]
                moved += widened(part, name)
                found[start:stop] = narrowed(moved, part, name)
        return found

    def moved(self, frame: NDArray[Any], base: NDArray[Any], name: str) -> NDArray[np.float64]:
        """How far each number moved, as 64-bit floats."""
        with np.errstate(all="ignore"):
            return widened(frame, name) - widened(base, name)

    def has_no_low_rank(
        self, frame: NDArray[Any], base: NDArray[Any], places: Places, noise: float, name: str
    ) -> bool:
        """Whether it is seen without singular values that a difference is not of low rank.

        It is not where, of the singular values of the numbers at `places`, all are above those of
        noise, or those that are have less than 0.85 of all squares. False: nothing is known.

        Args:
            frame: numbers of whole rows, ``(rows, columns)``.
            base: as many, from which they differ.
            places: rows and columns to look at, as an open mesh; at most 64 of each.
            noise: standard deviation of a number's noise, in units of the base's numbers.
            name: type of the numbers.
        """
        old = widened(base[places], name)
        with np.errstate(all="ignore"):
            moved = widened(frame[places], name) - old
            products = np.einsum("ik,jk->ij", moved, moved)  # BLAS may begin threads
            energy, fourth = float(np.trace(products)), float((products**2).sum())
            side = sum(np.sqrt(old.shape))
            limit = float(noise**2 * np.mean(old * old) * side**2)
        if not np.isfinite([fourth, limit]).all():
            return False
        if fourth < _MOST_ABOVE * limit * energy:
            return True
        if limit and _above_hold(products / limit) * limit < _MOST_ABOVE * energy:
            return True
        if old.shape[0] > old.shape[1] or limit <= _EXACT * energy:
            return False
        try:
            np.linalg.cholesky(products - _TWICE * limit * np.eye(len(products)))
        except np.linalg.LinAlgError:
            return False
        return True


def _above_hold(products: NDArray[np.float64]) -> float:
    """The most that eigenvalues above 1 add up to, by their powers: see products.c."""
    squared = np.einsum("ik,jk->ij", products, products)
    second, fourth = float((products**2).sum()), float((squared**2).sum())
    most = fourth**0.25
    less = (1 - 1 / most) / (most**2 - 1) if 1 < most < _FAR_ABOVE else 0.0
    return (1 + less) * second - less * fourth if less else second


class NativeProducts(Products):
    """In C, without the interpreter lock, for the types that it knows."""

    name = "native"

    def step(
        self,
        base: NDArray[Any],
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        scale: float,
        skipped: int,
        name: str,
    ) -> NDArray[Any]:
        if name not in _IN_C:
            return super().step(base, left, right, scale, skipped, name)
        out = buffer_for("step", base.size, base.dtype)
        rank, columns = right.shape
        factors = np.ascontiguousarray(left), np.ascontiguousarray(right)
        codecs.step_product(base, base.itemsize, *factors, rank, columns, skipped, scale, out)
        return out

    def moved(self, frame: NDArray[Any], base: NDArray[Any], name: str) -> NDArray[np.float64]:
        if name not in _IN_C:
            return super().moved(frame, base, name)
        out = np.empty(frame.shape)
        numbers = np.ascontiguousarray(frame), np.ascontiguousarray(base)
        codecs.moved_numbers(*numbers, frame.itemsize, out)
        return out

    def has_no_low_rank(
        self, frame: NDArray[Any], base: NDArray[Any], places: Places, noise: float, name: str
    ) -> bool:
        if name not in _IN_C:
            return super().has_no_low_rank(frame, base, places, noise, name)
        rows, columns = places
        numbers = np.ascontiguousarray(frame), np.ascontiguousarray(base)
        return codecs.has_no_low_rank(
            *numbers, frame.itemsize, frame.shape[1], rows, columns, noise
        )


NUMPY: Final = Products()
NATIVE: Products | None = None if codecs is None else NativeProducts()
BEST: Products = NATIVE or NUMPY
