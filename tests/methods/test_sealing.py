"""Code of the driver that reads private rows tells the type of what stopped it, and no text."""

import inspect
import traceback
from typing import Any

import pytest

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.corpus import verify
from rayprivacy.methods.generator import method
from rayprivacy.methods.seqpate import heldout
from rayprivacy.methods.two_stage import heldout as two_stage_heldout
from rayprivacy.runs import heldout as heldout_documents

SECRET = "my test was positive"


class _Rows:
    """Whatever is asked of it, it quotes a private row, as parsers do."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"cannot parse {SECRET!r}")

    __truediv__ = __getattr__


DRIVERS = (
    *(heldout.heldout_metrics, heldout_documents.heldout_metrics, verify.verify_shards, method.label_sums),
    *(two_stage_heldout.heldout_metrics, two_stage_heldout.tree_metrics),
)


@pytest.mark.parametrize("function", DRIVERS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_private_text_stays_out_of_what_stops_a_driver(function: Any) -> None:
    with pytest.raises(RayPrivacyError, match=r"stopped with ValueError \(its text is withheld") as caught:
        function(*[_Rows() for _ in inspect.signature(function).parameters])
    assert SECRET not in "".join(traceback.format_exception(caught.value))
