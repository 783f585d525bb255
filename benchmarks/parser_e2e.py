"""Section 5.4 and table 3 of Mireshghallah et al. (ACL 2023): a parser learns a function that no public example has.

    python benchmarks/parser_e2e.py --data DIR --missing EventOnDate --epsilon 3 --json

`DIR` is that of benchmarks/smcalflow.py. Public are a tenth of the training dialogues, without the turns whose tree has
a function that begins with `--missing`; private are the utterances of all others, without trees. Arms:

    public      a parser that learns from the public pairs alone
    1-stage     and from synthetic utterances of the generator, which are annotated
    2-stage     and from those of two-stage generation, whose private trees are read by a parser of the public pairs
    full        a parser that learns from all gold trees, without privacy: the ceiling

Synthetic utterances are annotated by the parser of `full` in the place of experts. **It has read private gold trees, so
its labels carry private information without noise**: they are files of this benchmark, `releasable: false`, and never
enter the folder of a run. Parsers are SmolLM2 with LoRA, tested on the dev dialogues by their most likely tokens under
the grammar. Every model, annotation and row is kept in `--work`, so a stopped benchmark goes on.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from kept_rows import KeptRows
from parsing_figures import parsing_figures
from quickstart import watched_run
from smcalflow import has, prepare
from two_stage_table import recipe_of, recipes

from rayprivacy.core.private import digest_json
from rayprivacy.generation.decode import greedy
from rayprivacy.generation.settings import BATCH
from rayprivacy.methods.two_stage.parser import VERB, kept_parser
from rayprivacy.methods.two_stage.private_trees import HOW as PUBLIC
from rayprivacy.models.asked import Pair, asked
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig, ParserConfig
from rayprivacy.structures.grammar import Grammar, lispress, read_functions
from rayprivacy.structures.masks import matcher_of

ARMS = ("public", "1-stage", "2-stage", "full")
PAPER = {"public": 0.0, "1-stage": 0.480, "2-stage": 0.614, "full": 0.740}  # match on EventOnDate, table 3, epsilon 3
SYNTHETIC = ("1-stage", "2-stage")
TREE_TOKENS = 160
Row = dict[str, Any]


class Benchmark:
    """One missing function, one epsilon and one seed, with all files in one folder."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._given, self._work = arguments, arguments.work
        whole = self._work / "smcalflow"
        self._work.mkdir(parents=True, exist_ok=True)
        prepare(arguments.data, whole)
        self._split = self._work / f"without-{arguments.missing}"
        private, public, dev = (_rows(whole / f"{name}.parquet") for name in ("private", "public", "dev"))
        self.known = [row for row in public if not self.misses(row)]
        self.gold = private + public
        missing, others = ([row for row in dev if self.misses(row) is own] for own in (True, False))
        self.test = missing + others[: arguments.others]
        self._write_split(private, (whole / "functions.txt").read_text("utf-8"))
        self._rules = Grammar(lispress(read_functions(str(self._split / "functions.txt"), "functions")))
        self._base = ModelConfig(base=arguments.base)

    def misses(self, row: Row) -> bool:
        """Whether a tree has a function that no public tree may have."""
        return has(row["lispress"], self._given.missing)

    def row(self, arm: str) -> Row:
        """The figures of an arm on the test turns."""
        parser = self._parser("full", _pairs(self.gold)) if arm == "full" else self._parser(arm, self._learns(arm))
        read = self._read(parser, [row["user_utterance"] for row in self.test])
        gold = [row["lispress"] for row in self.test]
        own = sum(map(self.misses, self.test))  # they come first
        sides = {"missing": slice(own), "other": slice(own, None)}
        figures = {side: parsing_figures(gold[part], read[part]) for side, part in sides.items()}
        return {
            "test_turns_missing": own,
            "test_turns_other": len(gold) - own,
            **{f"{side}_{name}": round(value, 4) for side, found in figures.items() for name, value in found.items()},
            "paper_missing_match": PAPER[arm] if self._given.missing == "EventOnDate" else None,
        }

    def _learns(self, arm: str) -> list[Pair]:
        """The pairs that the parser of an arm learns from."""
        known = _pairs(self.known)
        return known + self._annotated(arm) if arm in SYNTHETIC else known

    def _annotated(self, arm: str) -> list[Pair]:
        """Synthetic utterances, with the trees that the parser of all gold trees gives them in the place of experts."""
        given = self._given
        by = digest_json([given.base, self._config().model_dump(mode="json")])[:8]  # another parser annotates anew
        path = self._work / f"annotated-{arm}-{given.missing}-{given.epsilon:g}-{given.seed}-{by}.parquet"
        if not path.exists():
            texts = self._synthetic(arm)
            trees = self._read(self._parser("full", _pairs(self.gold)), texts)
            table = pa.table({"text": texts, "lispress": trees}).replace_schema_metadata({"releasable": "false"})
            pq.write_table(table, path)
        rows = pq.read_table(path).to_pylist()
        return [(row["text"], row["lispress"]) for row in rows if row["lispress"]]

    def _synthetic(self, arm: str) -> list[str]:
        """The utterances of a private release."""
        given, name = self._given, f"{arm}-{self._given.missing}-{self._given.epsilon:g}-{self._given.seed}"
        own = recipes(self._split)[arm]
        if arm == "2-stage":
            config = self._config().model_dump(mode="json") | {"source": str(self._split / "public.parquet")}
            own = own | {"corpus": {"labels": []}, "parser": config}
        source = self._split / "private.parquet"
        recipe = recipe_of(own, source, self._work, name, given.epsilon, given.seed, given.texts)
        path = self._work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe | {"model": {"base": given.base}}))
        if arm == "2-stage":
            self._lend(self._work / name)
        watched_run(path, self._work / name, given.override)
        return [str(text) for text in pq.read_table(self._work / name / "synthetic.parquet")["text"].to_pylist()]

    def _config(self) -> ParserConfig:
        given = self._given
        return ParserConfig.parse({"source": "public", "text": "user_utterance", **given.parser})

    def _parser(self, arm: str, pairs: list[Pair]) -> Backbone:
        return load_backbone(ModelConfig(base=str(self._trained(arm, pairs)), dtype="float32"))

    def _trained(self, arm: str, pairs: list[Pair]) -> Path:
        """The folder of a parser of some pairs, trained or found trained."""
        print(f"parser of {arm}: {len(pairs)} pairs", file=sys.stderr, flush=True)
        how = PUBLIC if arm == "public" else "A parser of a benchmark. It may have read private text."
        base, parent = load_backbone(self._base), self._work / "parsers"
        parent.mkdir(exist_ok=True)
        return kept_parser(base, pairs, self._config(), TREE_TOKENS, _said, parent, "of a benchmark", how)

    def _lend(self, run: Path) -> None:
        """Give a run the parser of the public pairs, which it would train once more."""
        folder, public = self._trained("public", _pairs(self.known)), run / "public"
        figures = folder.with_suffix(".json")
        if not (public / figures.name).exists():  # the run writes more figures into its own
            shutil.copytree(folder, public / folder.name, dirs_exist_ok=True)
            shutil.copy(figures, public)

    def _read(self, parser: Backbone, utterances: list[str]) -> list[str]:
        """The trees of some utterances, many at a time: nothing here is to be released."""
        matcher = matcher_of(self._rules, parser, int(parser.model.config.vocab_size))
        prompts = [asked(VERB, each, parser, self._config().max_tokens) for each in utterances]
        trees = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            few = [prompts[place] for place in places]
            written = greedy(parser.model, parser, few, TREE_TOKENS, matcher.masks)
            for place, prompt, ids in zip(places, few, written, strict=True):
                tree = parser.text_after(prompt, ids)
                trees[place] = tree if matcher.accepts(tree) else ""
        return trees

    def _write_split(self, private: list[Row], names: str) -> None:
        """What the runs read: public pairs, private utterances without trees, and the names of functions."""
        self._split.mkdir(exist_ok=True)
        (self._split / "functions.txt").write_text(names, "utf-8")
        pq.write_table(_table(self.known, ("user_utterance", "lispress")), self._split / "public.parquet")
        pq.write_table(_table(private, ("dialogue_id", "user_utterance")), self._split / "private.parquet")


def claims(rows: list[Row]) -> dict[str, bool]:
    """What the acceptance asks of the match on missing turns, for the arms that are there."""
    match = {row["arm"]: row["missing_match"] for row in rows}
    asked_for = {
        "public at most 1%": lambda: match["public"] <= 0.01,
        "1-stage above public": lambda: match["1-stage"] > match["public"],
        "2-stage 2 points above 1-stage": lambda: match["2-stage"] >= match["1-stage"] + 0.02,
    }
    return {said: holds() for said, holds in asked_for.items() if all(arm in match for arm in ARMS if arm in said)}


def _said(step: int) -> None:
    if step % 100 == 0:
        print(f"step {step}", file=sys.stderr, flush=True)


def _rows(path: Path) -> list[Row]:
    return list(pq.read_table(path).to_pylist())


def _pairs(rows: list[Row]) -> list[Pair]:
    return [(row["user_utterance"], row["lispress"]) for row in rows]


def _table(rows: list[Row], columns: tuple[str, ...]) -> pa.Table:
    return pa.table({name: [row[name] for row in rows] for name in columns})


def main(words: list[str] | None = None) -> None:
    arguments = _arguments(words)
    benchmark = Benchmark(arguments)
    kept = KeptRows(arguments.work / "rows.jsonl")
    names = {"missing": arguments.missing, "epsilon": arguments.epsilon, "seed": arguments.seed, "base": arguments.base}
    names |= {"texts": arguments.texts, "parser": arguments.parser, "others": arguments.others}
    rows = [kept.row({"arm": arm} | names, lambda arm=arm: benchmark.row(arm)) for arm in arguments.arms]
    found = {"rows": rows, "claims": claims(rows)}
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(map(_shown, rows)))


def _shown(row: Row) -> str:
    figures = ("missing_match", "missing_precision", "missing_recall", "other_match", "paper_missing_match")
    return "  ".join([str(row["arm"]), *(f"{name} {row[name]}" for name in figures)])


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the SMCalFlow files")
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/parser_e2e").absolute())
    parser.add_argument("--missing", default="EventOnDate", help="how the functions begin that no public tree has")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--texts", type=int, default=9000, help="synthetic utterances")
    parser.add_argument("--others", type=int, help="dev turns without the missing function, at most; all if absent")
    parser.add_argument("--base", default="smollm2-135m")
    parser.add_argument("--parser", type=json.loads, default={"steps": 800}, help="keys of the parsers, as JSON")
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of the runs' recipes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
