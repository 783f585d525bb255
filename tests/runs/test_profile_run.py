"""Whole profiles: one charge and one draw of each release, whatever is killed, and nothing exact outside `private/`."""

import json
import re
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import known_key
from test_toy import killed
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.cli import main
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.profile.plan import COUNTING, COUNTS, KEYWORDS
from rayprivacy.release import noise
from rayprivacy.release.votes import SCALE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MARK = "zqxjvk"
USERS, FOOD, MOST = 103, 67, 13  # and so many of them write of soup, and one so many texts: no public cell ends there
EPSILON = 60.0


def _rows(users=USERS):
    for user in range(users):
        for number in range(MOST if user == 1 else 2):
            what, own = "soup" if user < FOOD else "trains", user < USERS - 1
            yield {
                "who": f"{MARK}u{user}",
                "said": f"{what} are nice {number} {f'{MARK}w{user}' if own else ''}",
                "topic": f"{MARK}l{user}" if user % 7 == 0 and own else what,
            }


ROWS = len(list(_rows()))


class Bench:
    def __init__(self, folder, base):
        self.folder, self.base, self.url = folder, base, f"sqlite:///{folder}/ledger.db"
        self.words = ["--key", known_key(folder), "--base", str(base)]
        self.write()

    def write(self, users=USERS):
        pq.write_table(pa.Table.from_pylist([*_rows(users)]), self.folder / "talk.parquet")

    def account(self, name):
        with closing(Ledger.open(self.url)) as ledger:
            terms = PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(EPSILON, 1e-6)
            ledger.create_account(name, *terms, threshold_delta=1e-7)

    def command(self, account, *more):
        columns = ["--user", "who", "--text", "said", "--label", "topic"]
        where = ["--ledger", self.url, "--account", account, "--out", str(self.folder / account)]
        return main(["profile", str(self.folder / "talk.parquet"), *columns, *where, *self.words, *more])

    def charges(self, account):
        with closing(Ledger.open(self.url)) as ledger:
            ledger.verify()
            return [line.state for line in ledger.lines(account)]

    def profile(self, account):
        return json.loads((self.folder / account / "profile.json").read_text())


@pytest.fixture(scope="module")
def bench(tmp_path_factory, tiny_base, local_ray):
    return Bench(tmp_path_factory.mktemp("profile"), tiny_base)


def _outside(root):
    """All files that a run leaves outside its private folder, as text."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and "private" not in path.parts]
    return {str(path.relative_to(root)): path.read_bytes().decode(errors="replace") for path in files}


def test_a_profile_says_what_many_users_share_and_nothing_of_one(bench, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    bench.account("whole")
    assert bench.command("whole", "--epsilon", "50") == 0
    said = "".join(capsys.readouterr())
    found, root = bench.profile("whole"), bench.folder / "whole"
    low, high = found["users"]["interval"]
    assert USERS / 2 < low < high < 2 * USERS
    assert {each["word"] for each in found["words"]} <= {"soup", "trains", "nice"}
    assert {"soup", "nice"} <= {each["word"] for each in found["words"]}
    assert {"label": "topic", "value": "soup"}.items() <= found["labels"][0].items()
    assert found["suggested"]["max_records_per_user"]["interval"][0] <= 3
    assert {COUNTS, KEYWORDS} == {*found["events"]} == {each["event"] for each in _figures(found)}
    assert "corpus.max_records_per_user" in said
    assert str(root / "report-public.html") in said
    assert "soup" in (root / "report-public.html").read_text()
    ledger = (bench.folder / "ledger.db").read_bytes().decode(errors="replace")
    for name, text in (*_outside(root).items(), ("console", said), ("ledger", ledger)):
        assert MARK not in text, name
    certificate = rp.Result(root).certificate
    assert [stage["name"] for stage in certificate.stages] == [COUNTS, KEYWORDS, "all stages together"]
    assert certificate.run_request.epsilon == 50
    assert bench.charges("whole") == ["committed"] * 2
    assert rp.evidence(root)


def _figures(found: Any):
    """Every figure of a profile."""
    if isinstance(found, dict):
        if "interval" in found:
            yield found
        for each in found.values():
            yield from _figures(each)
    elif isinstance(found, list):
        for each in found:
            yield from _figures(each)


def test_what_is_killed_is_charged_and_drawn_once(bench, monkeypatch):
    bench.account("killed")
    drawn, real = [], noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda *given: drawn.append(real(*given)) or drawn[-1])
    blocks = {"source": str(bench.folder / "talk.parquet"), "ledger": bench.url, "account": "killed"}
    more = {"privacy.key": known_key(bench.folder), "model.base": str(bench.base)}

    def again(**other):
        named = {"user": "who", "text": "said", "out": bench.folder / "killed"}
        return rp.profile(**blocks, **named, overrides=more, console=QUIET, **other).profile()

    for stage, before in ((COUNTING, False), (COUNTS, False), (KEYWORDS, True), (KEYWORDS, False)):
        with killed(stage, before=before):
            again()
    found = again()
    assert bench.charges("killed") == ["committed"] * 2
    assert len(drawn) == 2
    assert again() == found
    assert (bench.charges("killed"), len(drawn)) == (["committed"] * 2, 2)
    with pytest.raises(rp.ConfigError, match=r"holds a run of another recipe"):
        again(share=0.03)
    assert len(bench.charges("killed")) == 2


@pytest.fixture
def same_noise(monkeypatch):
    """Noise that covers whatever it is added to: all cells and keys come out alike."""
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda sums, _: np.full_like(sums, 10**6 * SCALE))


def test_all_that_depends_on_the_corpus_is_noisy(bench, same_noise, capsys):
    """One user more or less changes no file outside `private/` but by digests, and no file holds an exact count."""
    seen = []
    for account, users in (("with", USERS), ("without", USERS - 1)):
        bench.write(users)
        bench.account(account)
        assert bench.command(account, "--keywords", "1") == 0
        said = {"console": "".join(capsys.readouterr()), **_outside(bench.folder / account)}
        for name, text in said.items():
            if not name.endswith(".png"):
                assert not _exact(text), (name, _exact(text))
        seen.append(said)
    bench.write()
    assert seen[0].keys() == seen[1].keys()
    alike, other = ({name: _plain(text) for name, text in each.items() if _is_compared(name)} for each in seen)
    assert [name for name in alike if alike[name] != other[name]] == []


def _exact(text):
    """The numbers of a corpus that stand in a text; digests, seconds of a stage and pytest's own number are none."""
    counts = {ROWS, USERS, USERS - 1, FOOD, USERS - FOOD, ROWS - 2}
    text = re.sub(r"pytest-\d+", "", text)
    return [each for each in re.findall(r"(?<![\w.,])\d+(?![\w.,]?\d)", text) if int(each) in counts]


def _is_compared(name):
    """A picture has the name of the account in it, and the internal page the running time, which is not protected."""
    return not name.endswith(".png") and name != "report.html"


def _plain(text):
    """Without what names the run or the corpus, and without times."""
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "", text)
    text = re.sub(r".*(so far|\"progress\").*\n", "", text)
    return re.sub(r"with(?:out)?\b|\d+\.\d+", "", text)
