"""The command line in this process: a process of its own would import for seconds what is here."""

import subprocess
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from rayprivacy.cli import main


def command(words: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """`rayprivacy` with some words, in a folder: its exit code, and what it said on a wide console."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", "200")
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
