"""Every bug of the list, put into the real code, turns a named test red."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from mutation import Mutation
from mutations import MUTATIONS

import rayprivacy

ROOT = Path(__file__).parents[2]
PACKAGE = Path(rayprivacy.__file__).parent
Run = Callable[[str, str, str, str], tuple[int, str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a test on a copy of the package in which a piece of a file is replaced; the exit code and what it said."""
    folder = tmp_path_factory.mktemp("mutants")
    copy, log = folder / "copy", folder / "log"
    shutil.copytree(PACKAGE, copy / "rayprivacy")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, str(Path(__file__).with_name("mutant_server.py"))]
    with subprocess.Popen(
        command, cwd=ROOT, env=ours | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout

        def run(file: str, old: str, new: str, test: str) -> tuple[int, str]:
            arguments = [
                f"{ROOT / test}",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "--hypothesis-profile=failing",
                f"--basetemp={folder / 'tmp'}",
            ]
            order = {"package": str(copy), "arguments": arguments, "log": str(log)}
            with replaced(copy / "rayprivacy" / file, old, new):
                print(json.dumps(order), file=server.stdin, flush=True)
                return int(server.stdout.readline()), log.read_text()

        yield run
        server.stdin.close()


@contextmanager
def replaced(source: Path, old: str, new: str) -> Iterator[None]:
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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_the_bug_is_noticed(run: Run, mutation: Mutation) -> None:
    assert (PACKAGE / mutation.file).read_text().count(mutation.old) == 1, "the code of the table is gone: rewrite it"
    code, said = run(mutation.file, mutation.old, mutation.new, mutation.test)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert " failed" in said.splitlines()[-1], said  # an error of a fixture, or of an import, proves nothing


def test_a_copy_without_a_bug_passes(run: Run) -> None:
    """Also after all bugs: each of them was taken back."""
    test = MUTATIONS[0].test
    code, said = run(MUTATIONS[0].file, MUTATIONS[0].old, MUTATIONS[0].old, test)
    assert code == pytest.ExitCode.OK, said
    first = (PACKAGE / "__init__.py").read_text().splitlines()[0]
    code, said = run("__init__.py", first, "raise OSError", test)
    assert code != pytest.ExitCode.OK, "the copy is not what the test imports"


def test_the_table_of_the_docs_is_this_one() -> None:
    text = (ROOT / "docs" / "soundness.md").read_text()
    for mutation in MUTATIONS:
        file, _, case = mutation.test.partition("::")
        assert f"| {mutation.bug} | `{mutation.file}` | `{Path(file).name}::{case}` |" in text
    assert text.count("` | `test_") == len(MUTATIONS)
