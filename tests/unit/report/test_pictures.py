"""The figures as files: the page's drawing and colours, letters in them, and no private one where it must not be."""

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from run_directory import ATTACK, AUDIT, certificate, metrics

from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import method_named
from rayprivacy.reporting import render
from rayprivacy.reporting.claim import INTERNAL
from rayprivacy.reporting.figures import Part, chart_legend, line_chart, stacked_bar
from rayprivacy.reporting.inputs import Audit, Metrics
from rayprivacy.reporting.page import write_comparison, write_report
from rayprivacy.reporting.render import Picture, light_style, run_pictures, standalone, write_pictures
from rayprivacy.runs.method import Chart

PUBLIC = {"flow.png", "account.png", "lengths.png"}
PRIVATE = {"internal-lengths-heldout.png", "internal-roc.png", "internal-exposure.png"}
Make = Callable[..., Path]


@pytest.fixture
def run(make_run):
    return make_run(audited=True)


def names(folder):
    return {path.name for path in folder.iterdir()}


def colour(name):
    css = (Path(render.__file__).parent / "templates" / "report.css").read_text()
    found = re.search(rf"--{name}: #(\w\w)(\w\w)(\w\w);", css)  # the first are the light ones
    assert found
    return tuple(int(part, 16) for part in found.groups())  # type: ignore[return-value]


def all_pictures(**changes):
    cert, figures = Certificate.model_validate(certificate() | changes), Metrics.model_validate(metrics())
    return run_pictures(cert, figures, method_named("seqpate").card, Audit.model_validate(AUDIT))


def account_picture(folder, **changes):
    (path,) = write_pictures(folder, [each for each in all_pictures(**changes) if each.name == "account"])
    return Image.open(path)


def test_an_internal_report_has_all_of_them_and_one_to_share_no_private_one(run):
    write_report(run, internal=False)
    assert names(run / "plots") == PUBLIC
    shared = {name: (run / "plots" / name).read_bytes() for name in PUBLIC}
    write_report(run)
    assert {name: (run / "plots" / name).read_bytes() for name in PUBLIC} == shared
    assert names(run / "plots") == PUBLIC | PRIVATE
    for path in (run / "plots").iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width >= 2 * 484
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10
            assert image.text["Description"]
        assert path.stat().st_mode & 0o777 == (0o600 if path.name in PRIVATE else 0o644)


def test_text_that_is_not_said_to_be_releasable_is_private():
    figures = Metrics.model_validate(metrics() | {"synthetic": metrics()["synthetic"] | {"releasable": False}})
    pictures = run_pictures(Certificate.model_validate(certificate()), figures, method_named("seqpate").card, None)
    assert {each.name: each.internal for each in pictures}["lengths"]


def test_the_bar_has_the_colours_of_the_page_in_proportion(tmp_path):
    pixels = account_picture(tmp_path).convert("RGB")
    row = [pixels.getpixel((x, 110)) for x in range(pixels.width)]
    shares = [row.count(colour(name)) / 2000 for name in ("released", "other", "left")]
    assert shares == pytest.approx([1.5 / 3, 0.7 / 3, 0.8 / 3], abs=0.003)
    assert pixels.getpixel((0, 0)) == colour("card")
    # Names cannot break a picture, and its title takes lines.
    assert account_picture(tmp_path, account=f"{ATTACK} & \x00\x1b <svg " + "long " * 60).height > 400


def test_lines_are_lines_and_their_legend_has_their_colours(tmp_path):
    """A figure that is filled in black is one whose rules the renderer does not know."""
    lines = {"one": [(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)], "other": [(0.0, 0.5), (2.0, 0.7)]}
    chart = Chart(name="curve", title="title", across="across", up="up", series=lines)
    (path,) = write_pictures(tmp_path, [Picture("curve", line_chart(chart), chart_legend(chart))])
    pixels = Image.open(path).convert("RGB")
    found = {shade: count for count, shade in pixels.getcolors(1 << 20)}
    assert found.get((0, 0, 0), 0) < 0.001 * pixels.width * pixels.height
    for name in ("released", "private"):
        assert 300 < found[colour(name)] < 0.02 * pixels.width * pixels.height


def test_letters_are_drawn(tmp_path):
    figure, dark = stacked_bar("account", "title", [Part("bar-this", "one", 1.0, "1")]), []
    for number, times in enumerate((0, 1, 10)):
        legend = [("", "one two three" * times)] if times else []
        (path,) = write_pictures(tmp_path, [Picture(str(number), figure, legend)])
        grey = Image.open(path).convert("L")
        dark.append(sum(grey.histogram()[:60]))
        assert not any(grey.getpixel((grey.width - 1, y)) < 255 for y in range(grey.height))
    assert dark[0] + 200 < dark[1]
    assert dark[1] + 2000 < dark[2]


def test_legends_and_rules_are_complete():
    pictures = all_pictures()
    assert len(pictures) == 6
    for picture in pictures:
        drawn = standalone(picture)
        assert "var(" not in drawn
        assert (INTERNAL in drawn) == picture.internal
        used = {css for found in re.findall(r' class="([^"]+)"', drawn.split("</style>")[1]) for css in found.split()}
        styled = set(re.findall(r"\.([a-z-]+)", light_style()))
        assert used - styled <= {"account", "lengths", "roc", "exposure", "flow-across", "loss", "internal"}
    (account,) = (standalone(each) for each in pictures if each.name == "account")
    assert account.count('class="bar-this"') == 2  # in the bar and in the legend


@pytest.mark.parametrize("missing", ["renderer", "fonts"])
def test_without_renderer_or_font_the_report_is_written_and_says_so(run, monkeypatch, caplog, missing):
    if missing == "renderer":
        monkeypatch.setitem(sys.modules, "resvg_py", None)  # what an import sees where it is not installed
    else:
        monkeypatch.setattr(render, "_fonts", lambda: {"skip_system_fonts": True})
    with caplog.at_level(logging.WARNING):
        assert write_report(run).is_file()
    remedy = "install rayprivacy[report]" if missing == "renderer" else "install fonts"
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"Plots were left out of {run / 'plots'}: ")
    assert remedy in said
    assert said.endswith(", then run rayprivacy report again.")
    assert not (run / "plots").exists()


def test_a_comparison_has_its_frontier_in_a_folder_named_after_it(make_run, tmp_path):
    runs = [make_run({"run_request": {"epsilon": epsilon, "delta": 1e-6}}, name=f"run-{epsilon}") for epsilon in (1, 8)]
    write_comparison(runs, tmp_path / "shared.html", internal=False)
    assert not (tmp_path / "shared-plots").exists()
    write_comparison(runs, tmp_path / "page.html")
    assert names(tmp_path / "page-plots") == {"internal-frontier.png"}
    path = tmp_path / "page-plots" / "internal-frontier.png"
    assert path.stat().st_mode & 0o777 == 0o600
    with Image.open(path) as image:
        assert "run-8: epsilon of the run's request 8" in image.text["Description"]
        assert colour("released") in {found for _, found in image.convert("RGB").getcolors(1 << 20)}
