"""Every seeded bug, put into the real code, turns a named test red.

`make test` tries the bugs whose code or test has changed since seeded_bugs_seen.json, `make test-all` tries all, and
`make seeded-bugs` writes that file.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import yaml

import rayprivacy

ROOT = Path(__file__).parents[3]
PACKAGE = Path(rayprivacy.__file__).parent
SEEN = Path(__file__).with_name("seeded_bugs_seen.json")
WRITE = "RAYPRIVACY_WRITE_SEEN"  # set by `make seeded-bugs`
Run = Callable[[str, str, str, str], tuple[int, str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class SeededBug:
    """One change of the real code, and the test that must notice it; see seeded_bugs.yaml."""

    name: str
    bug: str
    file: str
    old: str
    new: str
    test: str

    def digest(self):
        """Of the change, of the file that is changed, and of the test's file without the tests that do not run."""
        file, _, case = self.test.partition("::")
        own = [text for name, text in _statements(ROOT / file) if name in ("", case.partition("[")[0])]
        return sha256(repr((self, (PACKAGE / self.file).read_bytes(), own)).encode()).hexdigest()[:16]


@cache
def _statements(file):
    """What a module consists of, each with the name of the test that it is, if it is one."""
    text = file.read_text()
    lines, found = text.splitlines(), []
    for each in ast.parse(text).body:
        first = min(part.lineno for part in (each, *getattr(each, "decorator_list", ())))
        name = each.name if isinstance(each, ast.FunctionDef) and each.name.startswith("test_") else ""
        found.append((name, "\n".join(lines[first - 1 : each.end_lineno])))
    return found


LISTED = Path(__file__).with_name("seeded_bugs.yaml").read_text()
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every process that collects tests reads the list
BUGS = [SeededBug(name, **bug) for name, bug in yaml.load(LISTED, LOADER).items()]


SEEN_THEN = json.loads(SEEN.read_text())
NIGHT = {bug.name: [pytest.mark.exhaustive] * (SEEN_THEN.get(bug.name) == bug.digest()) for bug in BUGS}
NONE_TRIED = [pytest.mark.exhaustive] * all(NIGHT.values())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a test on a copy of the package in which a piece of a file is replaced; the exit code and what it said."""
    folder = tmp_path_factory.mktemp("mutants")
    copy, log = folder / "copy", folder / "log"
    shutil.copytree(PACKAGE, copy / "rayprivacy")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, str(Path(__file__).parents[2] / "support" / "mutant_server.py")]
    with subprocess.Popen(
        command, cwd=ROOT, env=ours | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout

        def run(file, old, new, test):
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=failing"]
            arguments = [f"{ROOT / test}", *options, f"--basetemp={folder / 'tmp'}"]
            order = {"package": str(copy), "arguments": arguments, "log": str(log)}
            with replaced(copy / "rayprivacy" / file, old, new):
                print(json.dumps(order), file=server.stdin, flush=True)
                return int(server.stdout.readline()), log.read_text()

        yield run
        server.stdin.close()


@contextmanager
def replaced(source, old, new):
    """A piece of a file is replaced, and comes back; what Python keeps of other files stays valid."""
    text, times = source.read_text(), source.stat()
    compiled = Path(cache_from_source(str(source)))
    try:
        compiled.unlink(missing_ok=True)
        source.write_text(text.replace(old, new))
        yield
    finally:
        source.write_text(text)
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        compiled.unlink(missing_ok=True)


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name, marks=NIGHT[bug.name]) for bug in BUGS])
def test_the_bug_is_noticed(run, bug):
    code, said = run(bug.file, bug.old, bug.new, bug.test)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert " failed" in said.splitlines()[-1], said  # an error of a fixture, or of an import, proves nothing
    if WRITE in os.environ:
        SEEN.write_text(json.dumps(json.loads(SEEN.read_text()) | {bug.name: bug.digest()}, indent=0, sort_keys=True))


@pytest.mark.parametrize("bug", [pytest.param(BUGS[0], id="taken back", marks=NONE_TRIED)])
def test_a_copy_without_a_bug_passes(run, bug):
    """Also after all bugs that were tried: each of them was taken back."""
    code, said = run(bug.file, bug.old, bug.old, bug.test)
    assert code == pytest.ExitCode.OK, said
    first = (PACKAGE / "__init__.py").read_text().splitlines()[0]
    code, said = run("__init__.py", first, "raise OSError", bug.test)
    assert code != pytest.ExitCode.OK, "the copy is not what the test imports"


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_code_of_the_bug_is_still_there(bug):
    assert (PACKAGE / bug.file).read_text().count(bug.old) == 1, "rewrite the bug for the code of today"


def test_no_bug_takes_the_name_of_another():
    """YAML would read the last of them alone."""
    assert LISTED.count("\n  bug: ") == len(BUGS)


def test_the_page_of_the_docs_is_this_list():
    """`make seeded-bugs` writes it."""
    page = "".join(_lines())
    path = ROOT / "docs" / "seeded_bugs.md"
    if WRITE in os.environ:
        path.write_text(page)
    assert path.read_text() == page


def _lines():
    yield "# Seeded bugs\n\nEach is one change of the real code that breaks a guarantee, made in a copy of the package "
    yield f"before the named test runs, which must fail\n([why](soundness.md)). There are {len(BUGS)}.\n\n"
    yield "| If | In | This test fails |\n|---|---|---|\n"
    for bug in BUGS:
        file, _, case = bug.test.partition("::")
        yield f"| {bug.bug} | `{bug.file}` | `{Path(file).name}::{case}` |\n"
