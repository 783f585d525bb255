"""Every family of causal language models in transformers trains with the right gradients, or is refused in a sentence.

families.json says which of these it is; docs/generator.md shows it. The sweep takes a second or two for each family,
and `make families` writes both.
"""

import json
import os
import re
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
import torch
import transformers
from tiny_families import FAMILIES, NOT_MADE, tiny_model
from transformers import AutoTokenizer

from rayprivacy.blocks.trial import try_language_model
from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.methods.generator.method import reading_of
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.trainable import merged, trainable

SEEN = Path(__file__).with_name("families.json")
PAGE = Path(__file__).parents[3] / "docs" / "generator.md"
START, END = "<!-- families -->\n", "<!-- end of families -->\n"
WRITE = "RAYPRIVACY_WRITE_SEEN"  # set by `make families`
TRAINS, ALONE = "trains", "trains with `resources.batch_tokens: 8`"
TOGETHER, VOCABULARY, UNITS, LIMIT = 64, 400, 3, 1e-4
BASE = r"model\.base is '[^']*'[:,] "
# What the sentences of refusals hold, and what the table says in place of them.
WHY = {
    "have no rule": "a layer without a rule",
    "sees later tokens": "sees later tokens",
    "reads more than text": "reads more than text",
    "the rows cannot be told apart": "rows of a batch cannot be told apart",
    "would be lost": "a part of the gradient passes by its modules",
    "to which PEFT adds no LoRA": "PEFT adds no LoRA to it",
    "could not be loaded": "cannot be loaded",
    "could not read public tokens": "cannot be read as a language model",
    "it cannot be trained": "fails when it is trained",
}


def _outcome(family, kind, folder, tokenizer):
    """What the table says of one kind of training."""
    try:
        tiny_model(family, VOCABULARY).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return _trained(folder, kind)
    except ConfigError as error:
        said = str(error)
        assert said.endswith("."), said
        assert "\n" not in said
        whole = re.sub(BASE, "", said).rstrip(".")
        return "refused: " + next((why for part, why in WHY.items() if part in said), whole)


def _trained(folder, kind):
    recipe = GeneratorRecipe(model={"base": str(folder), "dtype": "float32"}, adapter={"kind": kind, "rank": 2})
    try_language_model(recipe, [reading_of(recipe)])
    backbone = load_backbone(recipe.model)
    model = trainable(backbone, recipe.adapter)
    for parameter in model.parameters():  # all of them matter: no zero biases, no LoRA factors that change nothing
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    for module in model.modules():
        if (
            isinstance(module, torch.nn.Embedding) and module.padding_idx is not None
        ):  # no training moves it, and loading makes it zero again
            module.weight.data[module.padding_idx] = 0
    together = TOGETHER
    try:
        check_independence(model, row_losses, 12, together)
    except ConfigError as error:
        if "batch_tokens to 8" not in str(error):
            raise
        together = 8
        check_independence(model, row_losses, 8, together)
    _step(model, together)
    _saved(model, backbone, recipe, folder.with_name("again"))
    return TRAINS if together == TOGETHER else ALONE


def _step(model, batch_tokens):
    """Move the weights by a sum of clipped gradients, which must be autograd's, unit by unit."""
    dice = torch.Generator().manual_seed(3)
    rows = [torch.randint(10, 300, (8,), generator=dice).int().numpy() for _ in range(UNITS)]
    batches = [physical_batches([[Document(row, 1)]], 8, 0)[0] for row in rows]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    units = [_autograd(model, batch, parameters) for batch in batches]
    norms = [torch.stack([part.norm() for part in unit]).norm() for unit in units]
    clip = float(sorted(norms)[1])  # one is longer, and is clipped
    shares = [min(1.0, clip / float(norm)) for norm in norms]
    expected = [sum(share * one for share, one in zip(shares, each, strict=True)) for each in zip(*units, strict=True)]
    taken = batches if batch_tokens == 8 else physical_batches([[Document(row, 1)] for row in rows], batch_tokens, 0)
    found = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in taken:
        sums = BookKeeping(model, Clipping(clip))(partial(row_losses, model, batch), 1)
        for total, parameter in zip(found, parameters, strict=True):
            total += sums[parameter]().float()
    whole = torch.stack([part.norm() for part in expected]).norm()
    for parameter, one, other in zip(parameters, found, expected, strict=True):
        assert (one - other).norm() <= LIMIT * max(other.norm(), 0.01 * whole)
        parameter.data -= 0.05 * other / whole


def _autograd(model, batch, parameters):
    found = torch.autograd.grad(row_losses(model, batch).sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@torch.no_grad()
def _saved(model, backbone, recipe, folder):
    """What is released computes what was trained, also after it was saved and loaded."""
    ids = torch.arange(20, 29)[None]
    save_model(merged(model, backbone), backbone.tokenizer, folder, "none", "A test.")
    again = load_backbone(recipe.model.model_copy(update={"base": str(folder)})).model
    expected = model(input_ids=ids).logits
    assert (again(input_ids=ids).logits - expected).norm() <= LIMIT * expected.norm()
    assert (backbone.model(input_ids=ids).logits - expected).norm() > 10 * LIMIT * expected.norm(), "it has learnt"


@pytest.mark.exhaustive
@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_MADE])
def test_a_family_trains_with_the_gradients_of_autograd_or_is_refused(family, tiny_base, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    found = {kind: _outcome(family, kind, tmp_path / kind, tokenizer) for kind in ("lora", "full")}
    seen = _seen()
    if WRITE in os.environ:
        SEEN.write_text(json.dumps(seen | {family: found}, indent=0, sort_keys=True) + "\n")
    else:
        assert found == seen[family]


def _seen():
    return json.loads(SEEN.read_text()) if SEEN.exists() else {}


def test_the_page_of_the_docs_says_what_was_found():
    """`make families` writes it, after the sweep."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    page = before + START + "".join(_lines(_seen())) + END + after
    if WRITE in os.environ:
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def _lines(seen):
    yield f"| LoRA | Full | Families of transformers {transformers.__version__} |\n|---|---|---|\n"
    order = sorted(seen.items(), key=lambda item: (item[1]["lora"].startswith("refused"), *_row(item), item[0]))
    for (lora, full), group in groupby(order, key=_row):
        yield f"| {lora} | {full} | {', '.join(name for name, _ in group)} |\n"
    rest = [name for name in FAMILIES if name not in seen]  # parts of larger systems, and what is new in transformers
    yield f"| not tried | not tried | {', '.join(rest)} |\n"


def _row(item):
    return item[1]["lora"], item[1]["full"]
