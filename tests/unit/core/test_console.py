"""The console: calls beside a block, threads of torch that leave cores to others, tables in which no cell is cut."""

import io
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from rayprivacy.core.console import SPINS, WholeTable, repeating

PATIENCE = 30.0


def test_calls_repeat_until_the_block_ends():
    calls: list[threading.Thread] = []
    three, done = threading.Event(), threading.Event()

    def call():
        calls.append(threading.current_thread())
        if len(calls) == 3:
            three.set()
            time.sleep(0.05)
            done.set()

    with repeating(0.001, call):
        assert three.wait(PATIENCE)
    assert done.is_set(), "the block ends after the call that is under way"
    told, (thread,) = len(calls), set(calls)
    assert thread.daemon
    assert not thread.is_alive()
    assert thread is not threading.current_thread()
    time.sleep(0.05)
    assert len(calls) == told


def test_a_short_block_does_not_wait_and_what_it_raises_passes_but_not_what_a_call_raises(
    capfd,
):
    calls: list[int] = []
    raised = threading.Event()

    def call():
        calls.append(1)
        raised.set()
        raise ValueError("private text")

    began = time.monotonic()
    with pytest.raises(KeyError, match="of the block"), repeating(60.0, call):
        raise KeyError("of the block")
    assert time.monotonic() - began < 10
    assert calls == []
    with repeating(0.001, call):
        assert raised.wait(PATIENCE)
        time.sleep(0.05)
    assert calls == [1], "a call that raises is the last"
    assert capfd.readouterr() == ("", "")
    assert not [thread for thread in threading.enumerate() if thread.name == "repeating"]


def test_threads_of_torch_share_cores_unless_told_otherwise():
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, sys, rayprivacy; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    for given, found in (({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)):
        said = subprocess.check_output([sys.executable, "-c", code], env=clean | given, text=True)
        assert said.split() == [str(found), "False"]


@pytest.mark.parametrize("width", [200, 80, 40])
def test_every_letter_of_every_cell_is_there_and_brackets_are_no_markup(width):
    names = ["nearest_distance_mean", "[bold]", "most_frequent_label_accuracy"]
    figures = ["0.08412 [0.07913, 0.08944]", "", "1.234e+04 [1.1e+04, 1.3e+04]"]
    table = WholeTable("figure", "synthetic", "real, other users", title="Memorisation: is it repeated?")
    for name, figure in zip(names, figures, strict=True):
        table.add_row(name, figure, figure)
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(table)
    shown = file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if "│" in line]
    columns = ["".join(re.sub(r"\s", "", row[place]) for row in rows) for place in range(3)]
    assert columns == ["".join(cells).replace(" ", "") for cells in (names, figures, figures)]
    assert width < 60 or all(name in shown for name in names)
