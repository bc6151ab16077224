"""The compiled extensions, or why they are missing: the one place that knows.

Every kernel in C has a twin in numpy or Python with identical results. Modules beside this name
both `NATIVE` (None where nothing was built) and `NUMPY` or `PYTHON`; `BEST` is the one to use.
"""

from __future__ import annotations

try:
    from tensorrepo.formats.native import _codecs as codecs
    from tensorrepo.formats.native import _kernels as kernels

    why_not_native: str | None = None
except ImportError as error:  # no compiler when this was installed, or built for another machine
    codecs = kernels = None  # type: ignore[assignment]
    why_not_native = str(error)

__all__ = ["codecs", "kernels", "why_not_native"]
