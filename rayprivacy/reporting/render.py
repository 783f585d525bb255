"""The figures of a page as PNG: the SVG on its own, with title and legend, in the page's light colours.

The page has legends in HTML and colours by a style sheet; a picture that stands alone needs both inside, and takes them
from the page's own files. A run keeps the pictures in `plots`, a comparison in a folder named after its page.

Rendering is done by resvg, which brings no fonts. Matplotlib's DejaVu is used where Matplotlib is installed, else fonts
of the system; where neither draws a letter there are no pictures, since a figure without its numbers misleads.
"""

import html
import importlib.util
import logging
import re
import struct
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from rayprivacy.core.files import OWNER_ONLY, SHARED, Json, write_atomic
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.reporting import claim, figures
from rayprivacy.reporting.figures import NOTHING, RECT, TEXT, Point, Series
from rayprivacy.reporting.format import CONTROL
from rayprivacy.reporting.inputs import Audit, Heldout, Metrics, Synthetic
from rayprivacy.runs.method import Card

SCALE, MARGIN, LINE, LETTER = 2.0, 16.0, 20.0, 7.0  # pixels per unit; a line's height, a letter's width
PLOTS = "plots"
ALONE = Markup(
    '<svg{xmlns} width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}"><style>{style}</style>{body}</svg>'
)
XMLNS = Markup(' xmlns="http://www.w3.org/2000/svg"')
INSIDE = Markup('<svg x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" ')
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_TITLE, _DESC = (re.compile(rf"<{tag} id=[^>]*>(.*?)</{tag}>", re.DOTALL) for tag in ("title", "desc"))
_LETTER = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="16">{}</text></svg>'
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """A figure of the page and its legend."""

    name: str
    figure: Markup  # SVG
    legend: Sequence[tuple[str, str]] = ()  # class of a colour (or none) and text
    internal: bool = False  # it shows what was measured on private text; its file is then named `internal-...`


def write_pictures(folder: Path, pictures: Sequence[Picture]) -> list[Path]:
    """Write figures as PNG, internal ones for their owner only; without renderer or font none, but a log line."""
    missing = _missing() if pictures else ""
    if missing:
        _log.warning("Plots were left out of %s: %s, then run rayprivacy report again.", folder, missing)
        return []
    if pictures:
        folder.mkdir(exist_ok=True)
    paths = []
    for picture in pictures:
        path = folder / f"{'internal-' * picture.internal}{picture.name}.png"
        write_atomic(path, _described(_png(standalone(picture)), picture), OWNER_ONLY if picture.internal else SHARED)
        paths.append(path)
    return paths


def standalone(picture: Picture) -> Markup:
    """The figure as a whole SVG file: style, title, and legend in it."""
    found = _SIZE.search(picture.figure)
    assert found
    inner, height = float(found[1]), float(found[2])
    width = max(inner, 484.0)
    body, y = NOTHING, MARGIN
    for line in textwrap.wrap(_inside(_TITLE, picture), int(width / (LETTER * 1.35))):
        body += TEXT.format(css="picture-title", x=MARGIN, y=y + 14, anchor="start", text=line)
        y += LINE
    y += 6
    figure = picture.figure.replace("<svg ", INSIDE.format(x=MARGIN, y=y, w=inner, h=height), 1)
    body, y = body + Markup(figure), y + height + 10  # noqa: S704  (the page's own figure, already escaped)
    for css, text in picture.legend:
        if css:
            body += RECT.format(css=css, x=MARGIN, y=y, w=12, h=12, inner=NOTHING)
        body, y = _lines(body, y, text, "picture-note", width)
    if picture.internal:
        body, y = _lines(body, y, claim.INTERNAL, "picture-note internal", width)
    w, h = width + 2 * MARGIN, y + MARGIN
    paper = RECT.format(css="picture", x=0, y=0, w=w, h=h, inner=NOTHING)
    return ALONE.format(xmlns=XMLNS, w=w, h=h, style=Markup(light_style()), body=paper + body)  # noqa: S704  (our file)


@cache
def light_style() -> str:
    """The page's rules for figures, with its light colours filled in."""
    templates = files("rayprivacy.reporting") / "templates"
    root = re.search(r":root \{(.*?)\}", (templates / "report.css").read_text(), re.DOTALL)
    assert root
    colours: Mapping[str, str] = dict(re.findall(r"(--[\w-]+): ([^;]+);", root[1]))
    rules = (templates / "figures.css").read_text()
    return re.sub(r"var\((--[\w-]+)\)", lambda used: colours[used[1]], rules)


def _lines(body: Markup, y: float, text: str, css: str, width: float) -> tuple[Markup, float]:
    for line in textwrap.wrap(text, int((width - 20) / LETTER)):
        body += TEXT.format(css=css, x=MARGIN + 20, y=y + 11, anchor="start", text=line)
        y += LINE
    return body, y


def _inside(tag: re.Pattern[str], picture: Picture) -> str:
    found = tag.search(picture.figure)
    return html.unescape(found[1]) if found else picture.name


def _missing() -> str:
    """What to do where pictures cannot be drawn; empty where they can."""
    if importlib.util.find_spec("resvg_py") is None:
        return "install rayprivacy[report]"
    return (
        "install fonts (Debian: fonts-dejavu-core) or matplotlib"
        if _png(_LETTER.format("x")) == _png(_LETTER.format(""))
        else ""
    )


def _png(svg: str) -> bytes:
    import resvg_py  # of the extra `report`; a report is written without it too

    return resvg_py.svg_to_bytes(CONTROL.sub("\ufffd", svg), zoom=SCALE, **_fonts())


@cache
def _fonts() -> Json:
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is None or not matplotlib.submodule_search_locations:
        return {}
    folder = Path(matplotlib.submodule_search_locations[0], "mpl-data", "fonts", "ttf")
    names = [str(path) for path in (folder / "DejaVuSans.ttf", folder / "DejaVuSans-Bold.ttf") if path.is_file()]
    return {"font_files": names, "font_family": "DejaVu Sans", "sans_serif_family": "DejaVu Sans"} if names else {}


def _described(png: bytes, picture: Picture) -> bytes:
    """The same picture with its description as text, for those who do not see it; after the header chunk."""
    header = 8 + 4 + 4 + 13 + 4  # signature; length, name, content and check of IHDR
    content = b"iTXt" + b"Description\0\0\0\0\0" + _inside(_DESC, picture).encode()
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    return png[:header] + chunk + png[header:]


def run_pictures(certificate: Certificate, metrics: Metrics, card: Card, audit: Audit | None) -> list[Picture]:
    """The figures of one run; of a page to share, `audit` is None and `metrics` only what is shareable."""
    parts = [(part.css, f"{part.name}: epsilon {part.shown}") for part in claim.account_parts(certificate)]
    drawn = figures.flow(card, figures.ACROSS)
    pictures = [Picture("flow", drawn), Picture("account", claim.account_bar(certificate), parts)]
    if metrics.synthetic:
        pictures += _of_text(metrics.synthetic, metrics.heldout)
    for chart in metrics.exhibits.charts:
        drawn, legend = figures.line_chart(chart), figures.chart_legend(chart)
        pictures.append(Picture(chart.name, drawn, legend, internal=chart.internal))
    if audit and audit.membership:
        pictures.append(Picture("roc", figures.roc(audit), figures.roc_legend(audit), internal=True))
    if audit and audit.canaries:
        drawn = figures.exposures(audit.canaries)
        pictures.append(Picture("exposure", drawn, figures.EXPOSURE_LEGEND, internal=True))
    return pictures


def _of_text(synthetic: Synthetic, heldout: Heldout | None) -> list[Picture]:
    """Lengths of synthetic texts, and of held-out ones beside them."""
    own = [Series("bar-synthetic", "synthetic", synthetic.words.histogram)]
    pictures = [_lengths(own, not synthetic.releasable)]
    if heldout and heldout.lengths:
        name = "held-out" if heldout.releasable else "held-out (internal)"
        both = [*own, Series("bar-heldout", name, heldout.lengths.histogram)]
        pictures.append(_lengths(both, not (heldout.releasable and synthetic.releasable), "lengths-heldout"))
    return pictures


def _lengths(series: Sequence[Series], internal: bool, name: str = "lengths") -> Picture:
    return Picture(name, figures.length_histogram(series), [(one.css, one.name) for one in series], internal)


def comparison_pictures(frontier: Markup | None, points: Sequence[Point]) -> list[Picture]:
    """The frontier of several runs, where there is one; perplexity is measured on private text."""
    if frontier is None:
        return []
    best = figures.unbeaten(points)
    legend = [
        (f"dot{' best' * (point in best)}", f"{point.name}: epsilon {point.across:.4g}, perplexity {point.up:.2f}")
        for point in points
    ]
    return [Picture("frontier", frontier, legend, internal=True)]


def comparison_folder(page: Path) -> Path:
    """Where the pictures of a comparison go: `runs/comparison-plots` for `runs/comparison.html`."""
    return page.with_name(f"{page.stem}-{PLOTS}")
