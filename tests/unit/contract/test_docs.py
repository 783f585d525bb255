"""The documentation is true where a machine can tell: it builds offline, links lead somewhere, commands parse."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from timeouts import patience
from typer.core import TyperGroup

import rayprivacy
from rayprivacy.cli import app

ROOT = Path(rayprivacy.__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
EXTERNAL = re.compile(r"^(https?:)?//", re.IGNORECASE)


def _loaded(page):
    """What a browser fetches to show a page: by its tags, and by what is written in its styles."""
    tags = re.findall(r"<(?:script|link|img|iframe|source|object)\b[^>]*>", page)
    shown = [tag for tag in tags if not re.search(r"\brel=.?(canonical|prev|next)", tag)]
    styles = re.findall(r"""<style.*?</style>|style="[^"]*"|style='[^']*'""", page, re.DOTALL)
    by_tag = re.findall(r"""\b(?:src|href|data)=["']?([^"'\s>]+)""", " ".join(shown))
    return by_tag + _urls(" ".join(styles))


def _urls(css):
    return re.findall(r"""(?:url\(|@import)\s*["']?([^"')]+)""", css)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_site_builds_offline_and_loads_nothing_from_another_host(tmp_path):
    refuse = "import socket\ndef refuse(*_):\n    raise OSError('offline')\nsocket.socket.connect = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(refuse)
    site, environment = tmp_path / "site", os.environ | {"PYTHONPATH": str(tmp_path), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == 0, done.stderr
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "overview.html", "results.html", "runbook.html"} <= {path.name for path in pages}
    for path in pages:
        loaded = _loaded(path.read_text())
        assert any(each.endswith(".css") for each in loaded)  # it sees what is there
        assert [each for each in loaded if EXTERNAL.match(each)] == [], path.name
    for path in site.rglob("*.css"):
        assert [each for each in _urls(path.read_text()) if EXTERNAL.match(each)] == [], path.name
    page = (site / "api" / "ledger.html").read_text()
    assert 'id="rayprivacy.ledger.store.Ledger.reserve"' in page
    assert "asking again for the same release, input and rung returns the same charge" in page
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page  # an example is code, not a quotation


def test_a_page_that_loads_from_another_host_would_be_noticed():
    page = (
        '<link rel="stylesheet" href="https://a/b.css"><script src="//c/d.js"></script>'
        "<style>@import 'https://e/f.css'; p { src: url(https://g/h.woff) }</style><a href='https://i/'>a link</a>"
    )
    assert _loaded(page) == ["https://a/b.css", "//c/d.js", "https://e/f.css", "https://g/h.woff"]


def _anchors(path):
    """The anchors that a code host and the site both make of headings."""
    headings = re.findall(r"^#+ (.+)$", _unfenced(path.read_text()), flags=re.MULTILINE)
    linked = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in linked}


def _unfenced(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_functions_and_files_lead_somewhere(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", _unfenced(text)) if path in PAGES else []:
        if not EXTERNAL.match(target):
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            assert file.exists(), target
            assert not anchor or anchor in _anchors(file), target
    shown = {*re.findall(r"\brp\.(\w+)", text), *re.findall(r"`rayprivacy\.(\w+)\(", text)}
    assert shown <= set(rayprivacy.__all__)
    named = re.findall(r"`((?:tests|rayprivacy|jobs|benchmarks|docs|tune_spaces|deploy)/[\w./-]+)`", text)
    assert [each for each in named if not (ROOT / each).exists()] == []


def _blocks(text):
    """Commands in blocks of code."""
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from re.findall(r"^ {4,}(?:\$ )?((?:\.venv/bin/)?rayprivacy .+)$", joined, flags=re.MULTILINE)
    for block in re.findall(r"^ *```.*?$(.*?)^ *```$", joined, flags=re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(?:\$ )?((?:\.venv/bin/)?rayprivacy .+)$", block, flags=re.MULTILINE)


def _inline(text):
    """Commands between backticks, which may leave out what is required."""
    yield from re.findall(r"`((?:\.venv/bin/)?rayprivacy [^`]+)`", _unfenced(text))


def _outline(shown):
    """The words of a command without the brackets and dots of a synopsis."""
    return shlex.split(re.sub(r"[\[\]]|\.\.\.(?=\W|$)", " ", shown))[1:]


def _words(command):
    words = shlex.split(command, comments=True)[1:]
    end = next((place for place, word in enumerate(words) if word in ("|", ">", ";", "&&")), len(words))
    return words[:end]


def _walk(words):
    """The command that the words name, the words after its name, and the name."""
    command, name = typer.main.get_command(app), "rayprivacy"
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    return command, words, name


def _check_options(command, words):
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in words:
        if re.match(r"-[a-zA-Z]|--", word):
            assert word.partition("=")[0] in known, f"{command.name} has no option {word}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_parse_as_they_are_shown(path):
    text = path.read_text()
    whole = [shown for shown in _blocks(text) if not re.search(r" \[| \.\.\.(\s|$)", shown)]
    for shown in whole:
        command, words, name = _walk(_words(shown))
        command.make_context(name, words)  # parses, and runs nothing
    for shown in {*_blocks(text), *_inline(text)} - {*whole}:
        _check_options(*_walk(_outline(shown))[:2])


def test_wrong_commands_would_be_noticed():
    text = "Say `rayprivacy plan R [-o K=V ...] [--fast]`.\n\n    rayprivacy ledger create --ledger x\n"
    text += "\n```\nrayprivacy paln R\n```\n"
    create, paln = _blocks(text)
    command, words, name = _walk(_words(create))
    with pytest.raises(Exception, match="Missing"):  # of typer's own click
        command.make_context(name, words)
    with pytest.raises(AssertionError, match="no command 'paln'"):
        _walk(_words(paln))
    (plan,) = _inline(text)
    with pytest.raises(AssertionError, match="no option --fast"):
        _check_options(*_walk(_outline(plan))[:2])


def test_the_plan_that_is_shown_is_the_one_that_is_printed():
    (shown,) = re.findall(r"^```\n(generator: .*?)^```$", (ROOT / "docs" / "cli.md").read_text(), re.M | re.S)
    printed = str(rayprivacy.plan(rayprivacy.load_recipe(ROOT / "jobs" / "generator" / "chat.yaml")))
    assert shown.split() == printed.split()


def test_every_complaint_is_answered_by_files_that_exist():
    text = (ROOT / "docs" / "comparison.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 30))
    for row in rows:
        *_, answer, shown, _ = row.split("|")
        assert re.search(r"`tests/[\w/]+\.py`", shown), row
        for module in re.findall(r"`([\w/]+\.py)`", answer):
            assert (ROOT / "rayprivacy" / module).is_file(), module


def test_quoted_messages_are_those_of_the_code():
    found = []  # every string of the package, with `...` where a value goes
    sources = [path.read_text() for path in (ROOT / "rayprivacy").rglob("*.py")]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    sentences = "\n".join(found)
    for name in ("runbook.md", "ledger.md"):
        quoted = re.findall(r"`([^`]+)`", _unfenced((ROOT / "docs" / name).read_text()))
        long = [" ".join(each.split()) for each in quoted if len(each.split()) > 4]
        messages = [each for each in long if not re.match(r"(rayprivacy|ledger|sqlite3) |\(", each)]
        assert len(messages) >= 3
        for message in messages:
            assert all(part.strip() in sentences for part in message.split("...")), message
