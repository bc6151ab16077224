"""Page of a report: one HTML file without scripts that asks nobody for anything.

Its content security policy forbids requests and scripts, whatever names and values the data has;
pictures stand in it as ``data:`` URIs. It is bounded in bytes: each section has a share of the
limit, and says what it left out. It is written piece by piece beside its place, and renamed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import byte_size, file_path, flag
from tensorrepo.formats.common.provenance import public_place
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.query.drawing.parts import text
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.report import sections

LEAST_LIMIT: Final = 64 << 10
_STYLE: Final = """
:root{color-scheme:light dark;--ground:#ffffff;--card:#f6f8fa;--ink:#1f2328;--quiet:#59636e;
--line:#d1d9e0;--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#9a6700;
--c6:#0f766e;--c7:#57606a}
@media(prefers-color-scheme:dark){:root{--ground:#0d1117;--card:#161b22;--ink:#e6edf3;
--quiet:#9198a1;--line:#3d444d;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#f778ba;
--c5:#d29922;--c6:#39c5cf;--c7:#8b949e}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1180px;background:var(--ground);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:22px;margin:0}h2{font-size:18px;margin:36px 0 12px;padding-bottom:4px;
border-bottom:1px solid var(--line)}h3{font-size:15px;margin:0 0 6px}
nav{margin:14px 0}nav a{margin-right:16px;color:var(--c0)}
article{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:14px 16px;
margin:12px 0}
.quiet,.facts{color:var(--quiet);margin:4px 0}.facts span+span::before{content:" · "}
.fault{color:var(--c1)}code,pre{font:12px/1.5 ui-monospace,monospace}
pre{white-space:pre-wrap;margin:6px 0}
table{border-collapse:collapse;margin:8px 0;font-variant-numeric:tabular-nums}
th{color:var(--quiet);font-weight:600;text-align:left}
th,td{padding:4px 14px 4px 0!important;overflow-wrap:break-word;border-bottom:1px solid var(--line);
vertical-align:top}
.tensorrepo,.wide{overflow-x:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:8px 0}
dt{color:var(--quiet)}dd{margin:0}ul{margin:4px 0;padding-left:20px}
summary{cursor:pointer;color:var(--quiet)}
.gallery{display:flex;flex-wrap:wrap;gap:10px;margin:10px 0}figure{margin:0}
.gallery figure{width:68px;text-align:center}
.gallery img{width:64px;height:64px;object-fit:contain;image-rendering:pixelated;
background:var(--ground);border:1px solid var(--line);border-radius:4px}
.gallery figcaption{font-size:11px;color:var(--quiet);line-height:1.3}
svg text{fill:var(--quiet);font-size:10px}svg line{stroke:var(--line)}
.histogram rect{fill:var(--c0);fill-opacity:.75}
.tensorrepo-lineage text{fill:currentColor;font-size:12px}
.tensorrepo-lineage text+text,.tensorrepo-lineage>text{font-size:10px}
.lines polyline{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}
.lines circle{fill:var(--c)}
.chart{display:inline-block;vertical-align:top;margin:8px 24px 8px 0;max-width:440px}
.chart figcaption{font-weight:600}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}
.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}
.legend span{display:inline-block;margin-right:12px;font-size:12px}
.legend i{display:inline-block;width:10px;height:10px;margin-right:5px;border-radius:2px;
background:var(--c)}
.shares{display:block;width:100%;height:10px;border-radius:3px;max-width:460px;margin:10px 0 4px}
.shares rect{fill:var(--c)}
.bar{display:grid;grid-template-columns:140px 160px max-content;gap:8px;align-items:center;
font-size:12px}.bar span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bar svg{width:160px;height:8px;border-radius:2px}.bar rect{fill:var(--c0);fill-opacity:.75}
.bar b{font-weight:400;color:var(--quiet)}
"""
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_Section = Callable[[Context, Revision], Iterator[str]]
# name: what makes its pieces, its share of the bytes, what is said where it has none
_SECTIONS: Final[dict[str, tuple[_Section, float, str]]] = {
    "Datasets": (sections.datasets, 0.5, "This commit has no datasets."),
    "Models": (sections.models, 0.15, "This commit has no models."),
    "Runs": (sections.runs, 0.15, "No runs were recorded in this repository."),
    "Lineage": (sections.lineages, 0.1, "There is nothing whose lineage could be drawn."),
    "Files": (sections.files, 0.02, "This commit has no files."),
    "Commits": (sections.commits, 0.05, "There are no commits."),
}


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that was written: where, its size, and pieces that its limit left out."""

    path: Path
    bytes: int
    left_out: int


def write_report(
    context: Context,
    to: str | Path,
    ref: str = "main",
    *,
    title: str = "",
    limit: int | str = "16MB",
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> WrittenReport:
    """See `Repository.report`.

    `title` is what the commit is called, where that is not `ref`; `progress` is told the sections
    done, of how many.
    """
    path = file_path("to", to)
    limit_bytes = byte_size("limit", limit, LEAST_LIMIT)
    revision = context.resolve(ref)
    with new_file(path, overwrite=flag("overwrite", overwrite)) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(_head(context, revision, title or ref))
            left_out = _write(file, context, revision, limit_bytes, progress)
        size = temporary.stat().st_size
    return WrittenReport(path, size, left_out)


def _write(
    file: IO[str],
    context: Context,
    revision: Revision,
    limit_bytes: int,
    progress: Callable[[int, int], None],
) -> int:
    left_out = 0
    for done, (name, (pieces, share, empty)) in enumerate(_SECTIONS.items()):
        progress(done, len(_SECTIONS))
        file.write(f'<section id="{name.lower()}"><h2>{name}</h2>')
        shown, skipped = 0, 0
        room = int(limit_bytes * share)
        for piece in pieces(context, revision):
            size = len(piece.encode())
            if size > room:
                skipped += 1
                continue
            file.write(piece)
            room -= size
            shown += 1
        if skipped:
            file.write(f'<p class="quiet">{skipped:,} more would not fit the limit of bytes</p>')
        elif not shown:
            file.write(f'<p class="quiet">{empty}</p>')
        file.write("</section>")
        left_out += skipped
    progress(len(_SECTIONS), len(_SECTIONS))
    file.write("</body></html>\n")
    return left_out


def _head(context: Context, revision: Revision, title: str) -> str:
    place = text(public_place(context.url), 200)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in _SECTIONS)
    message = revision.commit.message.partition("\n")[0]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{place} at {text(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{place}</h1><p class='facts'><span>{text(title)}</span>"
        f"<span>commit {revision.digest:.12}</span><span>{text(message)}</span>"
        f"<span>report of {made}</span></p></header><nav>{links}</nav>"
    )
