"""tensorrepo: a versioned repository for datasets and models."""

from tensorrepo._version import VERSION as __version__

__all__ = ["__version__"]
