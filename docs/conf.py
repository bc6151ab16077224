"""How Sphinx builds these pages: `make docs`, strictly."""

import tomllib
from pathlib import Path

from tensorrepo._version import VERSION

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))

project = "tensorrepo"
author = _project["project"]["authors"][0]["name"]
release = VERSION
version = VERSION
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
highlight_language = "none"  # of blocks that name no language; python, console and sql are colored
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"tensorrepo {VERSION}"
html_show_sourcelink = False
napoleon_use_ivar = True  # attributes of dataclasses are members already: one target each
