"""What the public base model writes behind public prompts, as a file that a recipe's `pretrain.source` names.

    python benchmarks/own_texts.py --prompts runs/europarl/prompts.txt --out runs/europarl/own.parquet

Trained on these, the base knows the form of such texts before any private step, for nothing: prompts and model are
public. Settings are those of pseudo-sentences in jobs/seqpate/europarl.yaml, unless `-o pseudo.KEY=VALUE` changes them.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.methods.registry import load_recipe
from rayprivacy.models.backbone import load_backbone

RECIPE = Path(__file__).parent.parent / "jobs" / "seqpate" / "europarl.yaml"


def written(prompts: list[str], changes: list[str]) -> list[str]:
    """Texts, each behind one of the prompts, which are taken in turn."""
    recipe: Any = load_recipe(RECIPE, changes)
    backbone = load_backbone(recipe.model)
    documents = sample(backbone.model, backbone, cut_prompts(prompts, recipe.pseudo), recipe.pseudo)
    return [str(backbone.tokenizer.decode(ids, skip_special_tokens=True)) for ids in documents]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a public file, a prompt a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of the recipe")
    arguments = parser.parse_args()
    prompts = [line for line in arguments.prompts.read_text("utf-8").splitlines() if line.strip()]
    texts = written(prompts, ["pseudo.texts=2000", *arguments.override])
    pq.write_table(pa.table({"text": texts}), arguments.out)
    print(f"{arguments.out}: {len(texts)} texts")


if __name__ == "__main__":
    main()
