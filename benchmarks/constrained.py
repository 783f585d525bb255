"""What a grammar costs when trees are sampled: the same model with and without masks, in turns, and how many follow it.

    python benchmarks/constrained.py --model runs/two_stage/model/parses --functions functions.txt --texts 256 --json

The model is the tree model of a two-stage run, in one process with one thread. Both ways write as many trees in the
same batches; seconds are also given for each token, because trees under masks are complete and may be longer. `--trees`
is a Parquet file with a column `lispress`, of which the share that follows the grammar is counted.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoConfig

from rayprivacy.generation.decode import sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.structures.grammar import Grammar, lispress, read_functions
from rayprivacy.structures.masks import matcher_of


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and tokens of both ways, and how many trees follow the grammar."""
    torch.set_num_threads(1)
    backbone = load_backbone(ModelConfig(base=str(arguments.model), dtype="float32"))
    vocabulary = int(AutoConfig.from_pretrained(arguments.model).vocab_size)
    rules = Grammar(lispress(read_functions(str(arguments.functions), "--functions")))
    matcher = matcher_of(rules, backbone, vocabulary)
    began = time.perf_counter()
    matcher.masks()
    found: dict[str, Any] = {"compile_s": round(time.perf_counter() - began, 3)}
    ways = {"free": None, "masked": matcher.masks}
    sums = {way: {"seconds": 0.0, "tokens": 0, "follow": 0} for way in ways}
    for block in range(0, arguments.texts, arguments.batch):
        for way, masks in ways.items():
            config = SamplingConfig(max_tokens=arguments.max_tokens, top_p=1.0, seed=block)
            began = time.perf_counter()
            written = sample(backbone.model, backbone, [""] * arguments.batch, config, masks=masks)
            sums[way]["seconds"] += time.perf_counter() - began
            # A batch goes on until its longest text ends, so that time is for the longest.
            sums[way]["tokens"] += arguments.batch * (max(map(len, written)) - 1)
            sums[way]["follow"] += sum(matcher.accepts(backbone.text_after("", ids)) for ids in written)
    for each in sums.values():
        each["ms_per_token"] = round(1000 * each["seconds"] / each["tokens"], 3)
        each["seconds"] = round(each["seconds"], 1)
    found |= sums | {"ratio_per_token": round(sums["masked"]["ms_per_token"] / sums["free"]["ms_per_token"], 3)}
    if arguments.trees:
        trees = pq.read_table(arguments.trees)["lispress"].to_pylist()
        found |= {"trees": len(trees), "accepted": sum(map(matcher.accepts, trees))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--functions", type=Path, required=True)
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    found = measured(parser.parse_args())
    print(json.dumps(found, indent=1) if parser.parse_args().json else found)


if __name__ == "__main__":
    main()
