"""Cards: markdown that people wrote about a model, as text and as HTML that is safe to show.

Markdown is rendered with the HTML that stands in it, and all of it goes through a sanitizer: of
elements, attributes and schemes of URLs only those listed here are left. No image is loaded, as
whoever wrote a card would learn who reads it: its words are shown.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

import nh3

from tensorrepo.repo.objects.cache import LimitedCache

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MOST_BYTES: Final = 256 << 10  # that are rendered; a card is for people
_RENDERED: Final[LimitedCache[str]] = LimitedCache(16 << 20)
# fmt: off
_TAGS: Final = frozenset({
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "dd", "del", "details", "div", "dl",
    "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img",
    "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "samp", "small", "span", "strong",
    "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul",
    "var",
})
# fmt: on
_ATTRIBUTES: Final = {
    "a": {"href", "title"},
    "code": {"class"},
    "details": {"open"},
    "img": {"alt", "title"},
    "ol": {"start"},
    "td": {"align", "colspan", "rowspan"},
    "th": {"align", "colspan", "rowspan", "scope"},
}
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_LANGUAGE: Final = re.compile(r"language-[A-Za-z0-9+#._-]{1,40}")
_FRONT_MATTER: Final = re.compile(r"\A---\r?\n.*?^---\r?\n?", re.DOTALL | re.MULTILINE)


def render_card(text: str) -> str:
    """Markdown as HTML that is safe in a page; what is beyond `MOST_BYTES` is left out.

    The YAML at the beginning of Hugging Face's cards is no text, and not shown.
    """
    shown = text.encode()[:MOST_BYTES].decode(errors="ignore")
    found = _RENDERED.get(shown)
    if found is None:
        found = sanitize(_parser().render(_FRONT_MATTER.sub("", shown, count=1)))
        _RENDERED.put(shown, found, len(shown) + len(found))
    return found


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # 30 ms, for the first card

    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def sanitize(html: str) -> str:
    """HTML without what runs, loads, frames, submits or styles."""
    return nh3.clean(
        html,
        tags=set(_TAGS),
        attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
        attribute_filter=_attribute,
        clean_content_tags={"script", "style", "title", "textarea", "noscript", "template"},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    if tag == "code" and name == "class":
        return value if _LANGUAGE.fullmatch(value) else None
    return value
