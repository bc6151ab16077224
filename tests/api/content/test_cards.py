"""Cards: what people write about models, which must run nothing for who reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tensorrepo.api.content.cards import MOST_BYTES, render_card, sanitize
from tests.support.effort import sampled

# Vectors of the usual collections, each as HTML in markdown, and as markdown's own forms.
ATTACKS = (
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//example.org/x.js></SCRIPT>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<img src=x onerror=alert(1)>",
    "<img src=`javascript:alert(1)`>",
    '<img """><script>alert(1)</script>">',
    "<img src=x:alert(alt) onerror=eval(src) alt=1>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><a xlink:href='javascript:alert(1)'><text y=20>x</text></a></svg>",
    "<svg><use href='data:image/svg+xml;base64,PHN2Zz48L3N2Zz4='/></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table>",
    "<math href='javascript:alert(1)'>x</math>",
    "<body onload=alert(1)>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data='javascript:alert(1)'></object>",
    "<embed src='javascript:alert(1)'>",
    "<form action='/logout' method=post><input type=submit></form>",
    "<button formaction='javascript:alert(1)'>x</button>",
    "<input autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video>",
    "<audio src=x onerror=alert(1)>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<base href='//example.org/'>",
    "<link rel=stylesheet href='//example.org/x.css'>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<style>@import '//example.org/x.css';</style>",
    "<div style='background:url(javascript:alert(1))'>x</div>",
    "<div style='position:fixed;top:0;left:0;width:100%;height:100%'>x</div>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href='JaVaScRiPt:alert(1)'>x</a>",
    "<a href='java&#9;script:alert(1)'>x</a>",
    "<a href='java\nscript:alert(1)'>x</a>",
    "<a href='&#106;&#97;&#118;&#97;script:alert(1)'>x</a>",
    "<a href=' \x01javascript:alert(1)'>x</a>",
    "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
    "<a href='vbscript:msgbox(1)'>x</a>",
    "<a href='file:///etc/passwd'>x</a>",
    "<a href='#' onclick='alert(1)' onmouseover='alert(1)'>x</a>",
    "<a id=location name=cookie class=overlay>x</a>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript>",
    "<textarea></textarea><img src=x onerror=alert(1)>",
    "<title></title><script>alert(1)</script>",
    "<xmp><img src=x onerror=alert(1)></xmp>",
    "<!--<img src='--><img src=x onerror=alert(1)>-->",
    "<!-- > <script>alert(1)</script> -->",
    "<?php echo 1 ?><script>alert(1)</script>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<img/src/onerror=alert(1)>",
    "<b onclick\n=alert(1)>x</b>",
    "<p/onmouseover=alert(1)>x</p>",
    "<x onclick=alert(1)>x</x>",
    "<code class='language-x\" onclick=alert(1)'>x</code>",
    "[x](javascript:alert(1))",
    "[x](JAVASCRIPT:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](vbscript:x)",
    "![x](javascript:alert(1))",
    "![x](http://example.org/pixel.png)",
    "![x](x 'y\" onerror=alert(1) z=\"')",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    '```html" onclick=alert(1)\nx\n```',
    "# x <img src=x onerror=alert(1)>",
    "| <img src=x onerror=alert(1)> |\n|-|\n| <script>alert(1)</script> |",
    "`<script>alert(1)</script>`",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
)
FORMS = ("{}", "x {} y", "<div>\n\n{}\n\n</div>", "> {}")
_SAFE_URL = re.compile(r"(?:https?:|mailto:|#|/|[^:]*\Z)", re.IGNORECASE)
_ATTRIBUTES = {
    "href", "title", "class", "open", "alt", "start", "align", "colspan", "rowspan", "scope", "rel",
}  # fmt: skip
_ELEMENTS = {
    "a", "b", "br", "code", "details", "div", "em", "h1", "img", "p", "pre", "strong", "table",
    "tbody", "td", "th", "thead", "tr",
}  # fmt: skip


class _Elements(HTMLParser):
    """Elements with their attributes, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_card_runs_loads_or_submits(attack: str) -> None:
    elements = [one for form in FORMS for one in _Elements(render_card(form.format(attack))).found]
    names = {tag for tag, _ in elements}
    attributes = {name for _, every in elements for name in every}
    assert names <= _ELEMENTS | {"blockquote"}
    assert attributes <= _ATTRIBUTES
    assert all(_SAFE_URL.match(every.get("href", "")) for _, every in elements)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_clean_stays_as_it_is(attack: str) -> None:
    once = render_card(attack)
    assert sanitize(once) == once


def test_what_people_write_is_kept() -> None:
    text = (
        "# Net\n\n**bold** [link](https://example.org)\n\n```python\nx = 1\n```\n\n"
        "| a |\n|-|\n| 1 |"
    )
    html = render_card(text)
    assert "<h1>Net</h1>" in html
    assert 'href="https://example.org"' in html
    assert 'rel="noopener noreferrer nofollow"' in html
    assert '<code class="language-python">' in html
    assert "<td>1</td>" in html


def test_the_yaml_of_a_card_is_not_shown() -> None:
    assert render_card("---\nlicense: mit\ntags:\n- x\n---\n# Net") == "<h1>Net</h1>\n"


def test_a_card_is_rendered_within_bounds() -> None:
    assert len(render_card("x" * (4 * MOST_BYTES))) < 2 * MOST_BYTES


@pytest.mark.parametrize(
    "text", sampled(["[" * 50_000, "> " * 20_000, "*" * 50_000, "<div>" * 5_000], 2)
)
def test_what_is_nested_without_end_is_rendered_too(text: str) -> None:
    assert isinstance(render_card(text), str)
