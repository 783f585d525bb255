"""Saved models: folders for `from_pretrained(DIR)` of transformers, each with a model card.

The card is a short one, because the certificate is not written yet. So no model lies anywhere without a card, not even
that of a killed run; the report writes the full card over it.
"""

import shutil
from pathlib import Path
from typing import Any

from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.models.quiet import no_progress_bars

SHARD = "5GB"  # of a file of weights, at most
CARD = """---
library_name: transformers
tags: [differential-privacy, synthetic-text]
---
# Model of release {release}

{how} What is guaranteed, for whom and under
which assumptions stands in `certificate.json` and `certificate.md` of the run it comes from; no guarantee holds
without them. `rayprivacy report` on the finished run puts the statement of protection in place of this text.

{code}
"""
OF_LANGUAGE_MODEL = """    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("model")
    tokenizer = AutoTokenizer.from_pretrained("model")"""
OF_TAGGER = """    from rayprivacy import Tagger
    tagger = Tagger.load("model")"""


def save_model(model: Any, tokenizer: Any, out: Path, release: str, how: str) -> None:
    """Write weights, tokenizer and card, where the sentence `how` says how it was trained; the folder appears whole."""
    scratch = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    with no_progress_bars():
        model.save_pretrained(scratch, max_shard_size=SHARD)
        tokenizer.save_pretrained(scratch)
    write_card(scratch, release, how, model)
    shutil.rmtree(out, ignore_errors=True)
    scratch.rename(out)


def write_card(folder: Path, release: str, how: str, model: Any) -> None:
    """Write the card of a saved model, in place of the one that is there."""
    code = OF_TAGGER if hasattr(model.config, "tagger") else OF_LANGUAGE_MODEL
    write_atomic(folder / "README.md", CARD.format(release=release, how=how, code=code).encode(), SHARED)
