"""The page of one run or of several holds what it must, says what it may, and needs nothing from outside."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from run_directory import ATTACK, AUDIT, Page, certificate, metrics

from rayprivacy.core.errors import ConfigError
from rayprivacy.reporting.page import write_comparison, write_report

SECTIONS = ["verdict", "flow", "budget", "metrics", "samples", "limits", "recipe"]
LABEL = "internal: measured on private text, not covered by the certificate"
Make = Callable[..., Path]


@pytest.fixture
def page(make_run):
    return Page(write_report(make_run()))


@pytest.fixture
def audited(make_run):
    return make_run(audited=True)


def test_every_section_once_every_tag_closed_and_figures_described(page):
    assert page.open == []
    assert [name for name in page.ids() if name in SECTIONS] == SECTIONS
    assert len(page.ids()) == len(set(page.ids()))
    assert ("html", {"lang": "en"}) in page.tags
    assert [tag for tag, _ in page.tags].count("h1") == 1
    figures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert {attrs["class"] for attrs in figures} == {"flow-across", "flow-down", "account", "lengths"}
    for attrs in figures:
        assert attrs["role"] == "img"
        assert set((attrs["aria-labelledby"] or "").split()) <= set(page.ids())


def test_nothing_is_fetched_and_nothing_runs(page):
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    links = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in ("href", "src", "srcset")]
    assert links
    assert all(link.startswith("#") and link[1:] in page.ids() for link in links)
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    assert not [word for word in ("http://", "https://", "@import", "url(") if word in page.source]


def test_the_claim_is_the_cap_and_the_request_stands_beside_it(page):
    for said in (
        "Users of the corpus are protected with epsilon = 3, delta = 1e-06 (unit: user, relation: add-or-remove)",
        "This run asked for epsilon = 1.5, delta = 1e-06",
        "Accountant claim: analytic Gaussian (GDP filter); diagnostic: dp-accounting 0.6.0",
        "epsilon = 2.2, delta = 1e-06 (diagnostic, not the claim)",
    ):
        assert said in page.text
    assert "Warning" not in page.text


def test_private_figures_are_labelled(page, make_run):
    assert page.text.count(LABEL) == 2  # above the table, in the histogram's legend
    for said in ("On held-out text (internal)", "Held-out internal", "Student (this run) 31.07 6.44 3.22"):
        assert said in page.text
    synthetic = {key: value for key, value in metrics()["synthetic"].items() if key != "releasable"}
    unmarked = Page(write_report(make_run(figures={"synthetic": synthetic}))).text
    assert "free to share." not in unmarked
    assert unmarked.count(LABEL) == 3


def test_the_copy_that_leaves_the_house_has_no_private_figure(make_run):
    page = Page(write_report(make_run(), internal=False))
    assert "internal" not in page.text.lower()
    assert "held-out" not in page.text.lower()
    assert not [figure for figure in ("61.32", "31.07", "22.40", "5 min 12 s") if figure in page.source]
    assert [name for name in page.ids() if name in SECTIONS] == SECTIONS


def test_everything_is_escaped_and_a_password_blotted_out(make_run):
    run = make_run({"account": ATTACK, "release_id": ATTACK, "warnings": [ATTACK]})
    pq.write_table(pa.table({"text": [ATTACK, "</li></ol><b>", None]}), run / "synthetic.parquet")
    page = Page(write_report(run))
    assert "<script" not in page.source
    for said in (ATTACK, "</li></ol><b>", "(empty)", "<script>alert('recipe')</script>"):
        assert said in page.text
    assert "hunter2" not in page.source
    assert "postgresql://ada:***@db/ledger?sslmode=require&sslpassword=***" in page.text


def test_twenty_released_samples_and_the_same_bytes_each_time(make_run):
    run = make_run()
    for name in ("run.log", "private.json"):
        (run / name).write_text('"SECRET"')
    path = write_report(run)
    first = path.read_bytes()
    assert write_report(run).read_bytes() == first
    assert path == run / "report.html"
    page = Page(path)
    assert "20 of 246 synthetic texts" in page.text
    assert sum(attrs.get("dir") == "auto" for tag, attrs in page.tags if tag == "li") == 20
    assert not [word for word in ("SECRET", "unread") if word in page.source]  # nor the other columns of the text


@pytest.mark.parametrize("name", ["certificate.json", "metrics.json", "recipe.yaml", "synthetic.parquet"])
@pytest.mark.parametrize("content", [None, "{"])
def test_a_file_that_is_missing_or_broken_is_named(make_run, name, content):
    run = make_run()
    (run / name).unlink()
    if content:
        (run / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name} (does not exist|is no)"):
        write_report(run)


@pytest.mark.parametrize("key", ["epsilon", "ledger_head", "events", "warnings", "run_request"])
def test_a_missing_key_or_column_is_named_with_its_file(make_run, key):
    run = make_run()
    pq.write_table(pa.table({"words": ["x"]}), run / "synthetic.parquet")
    with pytest.raises(ConfigError, match="column 'text'"):
        write_report(run)
    (run / "audit.json").write_text('{"membership": {}}')
    with pytest.raises(ConfigError, match=r"audit\.json has no key 'canaries'"):
        write_report(run)
    (run / "certificate.json").write_text(json.dumps({k: v for k, v in certificate().items() if k != key}))
    with pytest.raises(ConfigError, match=rf"certificate\.json has no key '{key}'"):
        write_report(run)


def test_text_in_place_of_a_figure_is_refused_and_not_quoted(make_run):
    heldout = metrics()["heldout"] | {"perplexity": {"base": "a private sentence"}}
    with pytest.raises(ConfigError, match=r"heldout\.perplexity\.base") as caught:
        write_report(make_run(figures={"heldout": heldout}))
    assert "sentence" not in str(caught.value)


def test_the_internal_page_shows_both_and_one_to_share_neither(audited):
    page = Page(write_report(audited))
    assert len(page.ids()) == len(set(page.ids()))
    for said in ("0.625", "0.94", "0.475 to 0.525", "intervals are rough"):
        assert said in page.text
    shared = Page(write_report(audited, internal=False))
    for name in ("audit", "evaluation"):
        assert name in page.ids()
        assert name not in shared.ids()
    for said in ("Not flagged: no attack did better.", "AUC 0.51 (0.47 to 0.55)", "fidelity: mauve", "xposure"):
        assert said in page.text
        assert said not in shared.text
    assert not [word for word in ("Not flagged", "AUC", "mauve") if word in shared.text]


def test_dots_are_where_the_figures_are(audited):
    source = write_report(audited).read_text()
    roc, exposure = (re.search(rf'<svg class="{kind}".*?</svg>', source, re.S)[0] for kind in ("roc", "exposure"))
    assert re.findall(r'<circle class="dot loss" cx="[\d.]+" cy="([\d.]+)"', roc) == ["206.0", "202.4", "183.5"]
    admitted = re.search(r'<polyline class="best" points="([^"]+)"', roc)[1].split()
    assert [float(point.split(",")[1]) for point in admitted] == [202.4, 170.0, 26.0]
    assert re.findall(r'<circle class="dot" cx="[\d.]+" cy="([\d.]+)"', exposure) == ["188.0"]
    assert re.findall(r'<circle class="dot leaked" cx="[\d.]+" cy="([\d.]+)"', exposure) == ["26.0"]


def test_a_flagged_run_is_an_alarm(audited):
    flagged = AUDIT | {"verdict": {"flagged": True, "sentence": "FLAGGED by membership."}}
    (audited / "audit.json").write_text(json.dumps(flagged))
    page = Page(write_report(audited))
    assert ("div", {"class": "verdict warning"}) in page.tags
    assert "FLAGGED by membership." in page.text


@pytest.fixture
def three(make_run):
    """Three runs of growing epsilon; the second is beaten by the first."""
    runs = []
    for name, epsilon, student in (("one", 1.0, 40.0), ("three", 3.0, 41.5), ("eight", 8.0, 30.25)):
        figures = metrics()
        figures["heldout"]["perplexity"]["student"] = student
        runs.append(make_run({"run_request": {"epsilon": epsilon, "delta": 1e-6}}, figures, name))
    return runs


def _circles(page):
    return [attrs["class"] for tag, attrs in page.tags if tag == "circle"]


def test_the_page_shows_every_run_and_one_to_share_no_private_figure(three, tmp_path):
    page = Page(write_comparison(three, tmp_path / "page.html"))
    shared = Page(write_comparison(three, tmp_path / "shared.html", internal=False))
    for word in ("40.00", "41.50", "30.25", "61.32", "erplexity", "internal"):
        assert word in page.text
        assert word not in shared.text
    for word in ("one", "three", "eight"):
        assert word in page.text
        assert word in shared.text
    assert len(page.ids()) == len(set(page.ids()))
    assert (page.open, _circles(page), _circles(shared)) == ([], ["dot best", "dot", "dot best"], [])
    assert not [name for _, attrs in page.tags for name in attrs if name in ("src", "href")]


@pytest.mark.parametrize("other", [{"kind": "selective"}, {"unit": "record", "epsilon": 70.0}])
def test_claims_of_different_kinds_share_no_frontier(three, make_run, tmp_path, other):
    """The epsilon of a selective run is not one for users."""
    more = make_run({"corpus_digest": "0" * 64} | other, name="other")
    page = Page(write_comparison([*three, more], tmp_path / "page.html"))
    assert "claims of different kinds, or protect different units" in page.text
    assert "read one source under one key" in page.text
    assert page.text.count("warning: do not rely on it") == ("epsilon" in other)
    assert _circles(page) == []


def test_the_command_and_its_refusals(three, tmp_path):
    path = tmp_path / "page.html"
    with pytest.raises(ConfigError, match="two run directories or more"):
        write_comparison(three[:1], path)
    done = command(["report", *map(str, three), "--out", str(path)], tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(path))
    path.unlink()
    assert "s3://bucket/run is a URI" in command(["report", str(three[0]), "s3://bucket/run"], tmp_path).stderr
    (three[1] / "certificate.json").unlink()
    with pytest.raises(ConfigError, match=r"three/certificate\.json does not exist"):
        write_comparison(three, path)
    assert not path.exists()


def test_a_comparison_shows_what_both_measured_of_their_text_inside_and_not_outside(three, tmp_path):
    row = {"group": "fidelity", "name": "mauve", "better": "higher", "synthetic": 0.912, "reference": 0.99}
    words = [{"word": "kernel", "synthetic": 0.012, "reference": 0.107}]
    for run in three[:2]:
        (run / "evaluation.json").write_text(json.dumps({"rows": [row], "content_words": words}))
    inside = Page(write_comparison(three, tmp_path / "inside.html")).text
    assert "mauve 0.912 0.912" in inside
    assert "kernel 1.2% 1.2%" in inside
    outside = Page(write_comparison(three, tmp_path / "outside.html", internal=False)).text
    assert "mauve" not in outside
    assert "kernel" not in outside


def test_a_tagger_has_no_empty_table_of_perplexities(make_run):
    measured = {
        "releasable": False,
        "why": "held out",
        "semantic_error_rate": {"base": 0.9},
        "wrong_intents": {"base": 1},
    }
    run = make_run(figures={"synthetic": None, "heldout": measured, "timings_s": {}})
    assert "Perplexity lower is better" not in Page(write_report(run)).text


@pytest.mark.parametrize("releasable", [True, False])
def test_figures_with_noise_are_on_every_page_and_on_none_to_share_unless_they_say_so(make_run, releasable):
    rows = [{"name": "perplexity of student", "value": 31.25, "interval": [29.5, 33.25]}]
    figures = {"releasable": releasable, "rows": rows, "left_out": ["recall is left out: noise alone"]}
    run = make_run(figures=metrics() | {"figures": figures})
    for internal in (True, False):
        page = Page(write_report(run, internal=internal))
        assert page.open == []
        shown = internal or releasable
        assert ("perplexity of student 31.25 29.5 to 33.25" in page.text) is shown
        assert ("recall is left out" in page.text) is shown
