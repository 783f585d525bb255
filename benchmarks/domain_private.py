"""What redaction schedules do against leaks between domains: the rows of Domain Private Transformers (2023), and more.

    python benchmarks/domain_private.py --data multidogo_turn.parquet --rows all --seeds 1 2 3 --json

Nine models learn the dialogues of three services on the same conversations, in as many steps of as many conversations:

    only              one service, full text, no noise       also the reference of the scores
    public            all, full text, no noise               what there is to be prevented
    redacted-*        all, redacted copies, no noise         `-keywords` or `-classifier`: the policy that redacts
    private           all, full text, every step noisy
    jft-*             redacted copies, then noisy steps on full text
    schedule-*        as the concave schedule draws

Each is prompted with one service, and judged by policies of two kinds and by slot values: how often does it write what
belongs to another service? Secrets that 100 conversations of `media` share are ranked behind prompts of both. Rows
without noise could never be released: their epsilon is infinite, or, for redacted copies, only called 0 by the paper.
All of this is measured on private text. A row is kept in the folder with its settings, is not run again, and enters the
results as soon as it is there: the benchmark may be stopped at any time.
"""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
from dialogs import DOMAINS, prepare
from domain_leaks import (
    ALL,
    ClassifierJudge,
    Judge,
    ListJudge,
    Rate,
    Sampled,
    difference,
    leak_rates,
    leaks,
    likelihood_ratios,
    top_share,
)
from frozen_layers import FrozenLayers
from transformers import NoBadWordsLogitsProcessor
from without_noise import WithoutNoise

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.auditing.canaries import candidates, rank
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.blocks.steps_plan import with_learning_rate
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import Budget, PrivacyUnit
from rayprivacy.corpus.layout import joined
from rayprivacy.corpus.phrases import words_of
from rayprivacy.corpus.settings import WHOLE, JoinConfig
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.generation.decode import sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.least_noise import least_noise
from rayprivacy.methods.domain_private.reading import FULL, REDACTED, Redacting, redacting
from rayprivacy.methods.domain_private.schedules import draw
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.policy import MARK, Policy
from rayprivacy.policies.words import KeywordPolicy, PatternPolicy, SlotPolicy, read_lists
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.sanitize.settings import KINDS

USR, HOME, AWAY = "USR:", "airline", "media"
WINDOW, THRESHOLD, NORM = 16, 0.96, 0.1
TURNS = 4  # of a prompt at most: longer ones cost time to read, and say little more
MAX_CHARS = 4000
AT_ONCE = 256  # tokens, padded
JOIN = JoinConfig(by="conversation_id", order="turn", prefix=f"{USR} ", words=("slots",))
KEYWORDS = Path("jobs/domain_private/keywords.yml")
SHARED_BY, SECRETS = 100, 500
RESULTS = Path("benchmarks/results/domain_private.json")
UNNAMED = ("data", "prepared", "work", "rows", "seeds", "seed", "policies", "json")  # no settings of a row
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What tells a row from the others.

    Attributes:
        policy: that redacts; None where nothing is.
        redacted: for each step whether it reads redacted copies.
        noisy: whether the other steps are.
        domains: that it learns.
    """

    policy: str | None
    redacted: tuple[bool, ...]
    noisy: bool
    domains: tuple[str, ...] = DOMAINS


def plans(steps: int, seed: int) -> dict[str, Plan]:
    """All rows by name, the reference first."""
    full, hidden = (False,) * steps, (True,) * steps
    two, concave = draw("step", steps, seed), draw("expconcave", steps, seed)
    rows = {"only": Plan(None, full, False, (HOME,)), "public": Plan(None, full, False)}
    policies = ("keywords", "classifier")
    rows |= {f"redacted-{policy}": Plan(policy, hidden, False) for policy in policies}
    rows["private"] = Plan(None, full, True)
    rows |= {f"jft-{policy}": Plan(policy, two, True) for policy in policies}
    return rows | {f"schedule-{policy}": Plan(policy, concave, True) for policy in policies}


class Data:
    """The dialogues: private conversations as rows of user, text and domain; public turns; test conversations."""

    def __init__(self, folder: Path, key: Key) -> None:
        self.private = _documents(folder / "private.parquet")
        self.test = _documents(folder / "test.parquet")
        public = pq.read_table(folder / "public.parquet").to_pylist()
        self._public = [(turn["utterance"], turn["domain"]) for turn in public]
        self.secrets = candidates("plate", key, SECRETS)
        away = [row for row in self.private if row["domain"] == AWAY][:SHARED_BY]
        first = f"{USR} {self.secrets[0].sentence}"
        for row in away:  # planted across domains: conversations of one service begin with one secret
            row["text"] = f"{first}\n{row['text']}"
            row["slots"] = " ".join(["O"] * len(first.split()) + [row["slots"]])

    @cached_property
    def classifier(self) -> ClassifierPolicy:
        return ClassifierPolicy(train_scores(self._public, WINDOW), WINDOW, THRESHOLD, (USR,))

    @cached_property
    def lists(self) -> dict[str, list[str]]:
        return read_lists(str(KEYWORDS))

    def policy(self, name: str | None) -> Policy:
        """The policy that redacts; where nothing is redacted, any will do."""
        every = [phrase for listed in self.lists.values() for phrase in listed]
        return self.classifier if name == "classifier" else KeywordPolicy(every, (USR,))

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """Three judges; slot values are those that private text has in one service alone."""
        held: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for row in self.private:
            for value in _slot_values(row):
                held[value].add(row["domain"])
        own = {domain: [" ".join(v) for v, of in held.items() if of == {domain}] for domain in DOMAINS}
        keywords = ListJudge({domain: KeywordPolicy(listed) for domain, listed in self.lists.items()})
        slots = ListJudge({domain: KeywordPolicy(values) for domain, values in own.items()})
        return {"classifier": ClassifierJudge(self.classifier), "keywords": keywords, "slots": slots}


def _documents(path: Path) -> list[Row]:
    turns = pq.read_table(path)
    names = {"conversation_id": "user", "utterance": "text", "slot_labels": "slots", "turn": "order"}
    turns = turns.rename_columns([names.get(name, name) for name in turns.column_names])
    turns = turns.set_column(turns.column_names.index("order"), "order", turns["order"].cast("string"))
    rows = joined(turns.append_column("by", turns["user"]), JOIN, WHOLE).to_pylist()
    return sorted(rows, key=lambda row: row["user"])


def _slot_values(row: Row) -> Iterable[tuple[str, ...]]:
    """Runs of words in one slot of a row; a single short word is no value that anybody could be recognised by."""
    run: list[str] = []
    before = "O"
    for word, label in [*zip(row["text"].split(), row["slots"].split(), strict=False), ("", "O")]:
        if label != before and run:
            value = words_of(" ".join(run))
            if sum(map(len, value)) >= 5:
                yield value
            run = []
        run, before = ([*run, word] if label not in ("O", "?") else run), label


class Bench:
    """One seed: a model after another, each from the same base, on the same units and coins."""

    def __init__(self, given: argparse.Namespace, data: Data, key: Key, seed: int) -> None:
        self._given, self._data, self._key, self._seed = given, data, key, seed
        self.backbone = load_backbone(ModelConfig(base=given.base, dtype=given.dtype))
        config = DpSgdConfig(
            sampling_rate=given.batch / 5000,  # a public guess at the number of conversations
            expected_batch=given.batch,
            steps=given.steps,
            clipping_norm=NORM,
            max_records=1,
            max_tokens=given.tokens,
        )
        self.adapter = AdapterConfig(kind="lora", rank=8, layers=given.layers)
        self.training = with_learning_rate(config, self.adapter)
        self._frozen = FrozenLayers(self.backbone.model.config.num_hidden_layers - given.layers)

    def mechanism(self, plan: Plan) -> NoisySteps:
        """The steps of a row, with the least noise that fits the budget for its noisy ones."""
        if not plan.noisy:
            return WithoutNoise(self.training.sampling_rate, 0.0, NORM, self.training.steps)
        policy = self._data.policy(plan.policy).digest
        noisy = len(plan.redacted) - sum(plan.redacted)
        rate, budget = self.training.sampling_rate, Budget(self._given.epsilon, self._given.delta)
        shape = (rate, _noise(rate, noisy, budget), NORM, len(plan.redacted))
        return NoisySteps(*shape, redacted=plan.redacted, policy=policy)

    def train(self, plan: Plan) -> tuple[Any, dict[str, float]]:
        """A trained model as a plain one, and the seconds of its noisy and of its other steps, in the middle."""
        mechanism, low, policy = self.mechanism(plan), self._given.dtype == "bfloat16", self._data.policy(plan.policy)
        reading = redacting(
            PrivacyUnit.USER, (), _context, self._given.tokens, Redacting(policy, MAX_CHARS), plan.redacted
        )
        rows = [row for row in self._data.private if row["domain"] in plan.domains]
        sampler = PoissonSampler(
            self._key, f"seed {self._seed}", mechanism.sampling_rate, self._units(rows, reading, plan), 1,
            reading.version_of,
        )  # fmt: skip
        model = trainable(self.backbone, self.adapter)
        noise = StepNoise(KeyedNoise(self._key, f"seed {self._seed}"), mechanism, self.training.expected_batch)
        losses = self._frozen.watching(partial(row_losses, low_precision=low))
        engine = make_engine(model, self.training, noise, EngineConfig(), losses, low_precision=low)
        taken = defaultdict(list)
        for step in range(self.training.steps):
            began = time.monotonic()
            with self._frozen.of(model):
                engine.step(step, physical_batches(sampler.sample(step), AT_ONCE, self.backbone.end))
            taken["redacted" if plan.redacted[step] else "full"].append(time.monotonic() - began)
        model.load_state_dict(engine.state_dict(), strict=False)
        return merged(model, self.backbone), {kind: round(float(np.median(each)), 3) for kind, each in taken.items()}

    def secret_in_copies(self, plan: Plan) -> str | None:
        """What redacted steps read of the shared secret; it belongs to nobody."""
        if plan.policy is None:
            return None
        return self._data.policy(plan.policy).redact({"text": f"{USR} {self._data.secrets[0].sentence}"})

    def _units(self, rows: list[Row], reading: Reading, plan: Plan) -> list[Unit]:
        """Units in both versions; a version that no step reads is not made."""
        used = {reading.version_of(step) for step in range(self.training.steps)}
        made = {version: documents_of(rows, self.backbone, reading, version) for version in used}
        first, later = (made.get(version, next(iter(made.values()))) for version in (REDACTED, FULL))
        tags = [unit_tag(self._key, "user", row["user"]) for row in rows]
        return [Unit(tag, (one,), ((other,),)) for tag, one, other in zip(tags, first, later, strict=True)]


@cache
def _noise(rate: float, steps: int, budget: Budget) -> float:
    return least_noise(lambda sigma: NoisySteps(rate, sigma, NORM, steps).event, budget, "pld")


def _context(row: Row) -> str:
    return f"domain: {row['domain']}\n"


class Attack:
    """Prompts of one service, what a model writes behind them, and what two models make of it."""

    def __init__(self, given: argparse.Namespace, data: Data, backbone: Backbone) -> None:
        self._data, self._backbone = data, backbone
        own = [row for row in data.test if row["domain"] == HOME]
        ends = [(row, turns) for row in own for turns in range(min(TURNS + 1, len(row["text"].split("\n"))))]
        chosen = np.random.default_rng(0).permutation(len(ends))[: given.prompts]
        self._prompts = [_prompt(*ends[at]) for at in chosen for _ in range(given.samples)]
        self._config = SamplingConfig(texts=len(self._prompts), max_tokens=given.new_tokens, top_k=40, top_p=1.0)
        self._tokens, self._samples = given.tokens, given.samples

    def write(self, model: Any) -> list[Sampled]:
        """One more turn behind each prompt; the mark is forbidden, as in the paper."""
        documents = self._backbone
        texts = sample(model, documents, self._prompts, self._config, masks=self._without_mark)
        heads = [len(documents.prefix(prompt)) for prompt in self._prompts]
        new = [
            documents.text([each for each in ids[head:] if each != documents.end])
            for ids, head in zip(texts, heads, strict=True)
        ]
        return [Sampled(HOME, text.split("\n")[0].split(USR)[0].strip()) for text in new]

    def _without_mark(self) -> Any:
        tokens = [self._backbone.tokenizer.encode(text, add_special_tokens=False) for text in (MARK, f" {MARK}")]
        return NoBadWordsLogitsProcessor(tokens, eos_token_id=[self._backbone.end])

    def losses(self, model: Any, texts: list[Sampled]) -> tuple[Any, Any]:
        """Losses per token of prompts, and of prompts with what was written behind them."""
        loss = ModelLoss(replace(self._backbone, model=model), max_tokens=256)
        code, starts = f"domain: {HOME}\n", [prompt.split("\n", 1)[1] for prompt in self._prompts]
        whole = [f"{start} {each.text}" for start, each in zip(starts, texts, strict=True)]
        once = loss.per_token(starts[:: self._samples], [code] * len(starts[:: self._samples]))
        return np.repeat(once, self._samples), loss.per_token(whole, [code] * len(whole))

    def secret_ranks(self, model: Any) -> dict[str, float]:
        """The rank of the shared secret among all candidates, behind a prompt of its own service and of another one."""
        found = {}
        for domain in (AWAY, HOME):
            loss = ModelLoss(replace(self._backbone, model=model), prefix=f"domain: {domain}\n{USR} ")
            found[domain] = rank(loss([secret.sentence for secret in self._data.secrets]), 0)
        return found

    def perplexity(self, model: Any, texts: int) -> float:
        """Of test conversations of all services, in full."""
        rows = [self._data.test[at] for at in np.random.default_rng(1).permutation(len(self._data.test))[:texts]]
        loss = ModelLoss(replace(self._backbone, model=model), max_tokens=self._tokens)
        total, tokens = loss.totals([row["text"] for row in rows], [_context(row) for row in rows])
        return math.exp(total.sum() / tokens.sum())


def _prompt(row: Row, turns: int) -> str:
    lines = row["text"].split("\n")[:turns]
    return _context(row) + "\n".join([*lines, USR])


def measured(bench: Bench, attack: Attack, name: str, plan: Plan, reference: Any, given: argparse.Namespace) -> Any:
    """Train a row and measure it; returns the model and the figures."""
    cpu: dict[str, float] = {}
    model, seconds = _timed(cpu, "train", lambda: bench.train(plan))
    texts = _timed(cpu, "write", lambda: attack.write(model))
    own = _timed(cpu, "score", lambda: attack.losses(model, texts))
    theirs = _timed(cpu, "score_by_reference", lambda: attack.losses(reference, texts)) if reference else own
    scores = likelihood_ratios(own, theirs)
    judges = bench._data.judges
    rates = {judge: asdict(found[ALL]) for judge, found in leak_rates(texts, judges).items()}
    flags = leaks(texts, judges["classifier"])
    mechanism = bench.mechanism(plan)
    noisy = bool(plan.noisy)
    spent = epsilon([mechanism.event], given.delta, "pld") if noisy else None
    figures = {
        "row": name,
        "seed": given.seed,
        "steps": given.steps,
        "noisy_steps": given.steps - sum(plan.redacted) if plan.noisy else 0,
        "noise_multiplier": mechanism.noise_multiplier if noisy else None,
        "selective_epsilon": spent if any(plan.redacted) else None,
        "central_epsilon": spent if not any(plan.redacted) else None,  # None: infinite
        "perplexity": _timed(cpu, "perplexity", lambda: attack.perplexity(model, given.tested)),
        "leaks": rates,
        "leaks_of_top_tenth": asdict(top_share(flags, scores, 0.1)),
        "largest_score": float(scores.max()),
        "mean_score": float(scores.mean()),
        "rank_of_secret": _timed(cpu, "secrets", lambda: attack.secret_ranks(model)),
        "secret_in_copies": bench.secret_in_copies(plan),
        "seconds_a_step": seconds,
        "cpu_seconds": cpu,
        "samples": [each.text for each in texts[:10]],
        "releasable": False,
    }
    return model, figures


def _timed(cpu: dict[str, float], stage: str, act: Callable[[], T]) -> T:
    """Do something, and write down its CPU seconds: the machine may be shared."""
    began = time.process_time()
    done = act()
    cpu[stage] = round(time.process_time() - began, 1)
    return done


def run_seed(given: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """All rows of a seed; the reference is trained again where it is not at hand, since scores need it."""
    key = Key(np.random.default_rng(given.seed).bytes(32))  # nothing of this is ever released
    data = Data(given.prepared, key)
    bench = Bench(given, data, key, given.seed)
    attack, every, found, reference = Attack(given, data, bench.backbone), plans(given.steps, given.seed), [], None
    missing = [name for name in names if not _kept(given, name).exists()]
    if missing and "only" not in missing:
        reference = bench.train(every["only"])[0]
    for name in names:
        if name in missing:
            model, figures = measured(bench, attack, name, every[name], reference, given)
            reference = model if name == "only" else reference
            _kept(given, name).write_text(json.dumps(figures))
            if given.json:
                write_results(given)
        found.append(json.loads(_kept(given, name).read_text()))
        print(_line(found[-1]), flush=True)
    return found


def _kept(given: argparse.Namespace, name: str) -> Path:
    return _folder(given) / f"{name}-{given.seed}.json"


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(given).items() if name not in UNNAMED}


def _folder(given: argparse.Namespace) -> Path:
    return Path(given.work) / digest_json(_settings(given))[:8]


def write_results(given: argparse.Namespace) -> None:
    """Write every row of these settings that there is, with what each seed shows so far."""
    order = list(plans(2, 0))
    rows = [json.loads(path.read_text()) for path in _folder(given).glob("*.json")]
    rows.sort(key=lambda row: (row["seed"], order.index(row["row"])))
    said = {seed: verdicts([row for row in rows if row["seed"] == seed]) for seed in {row["seed"] for row in rows}}
    RESULTS.write_text(json.dumps({"settings": _settings(given), "rows": rows, "verdicts": said}, indent=1) + "\n")


def _line(row: dict[str, Any]) -> str:
    rates = ", ".join(
        f"{judge} {100 * each['leaks'] / each['texts']:.1f}% [{100 * each['low']:.1f}, {100 * each['high']:.1f}]"
        for judge, each in row["leaks"].items()
    )
    return f"{row['row']:>20} seed {row['seed']}: perplexity {row['perplexity']:.1f}; {rates}; {row['rank_of_secret']}"


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is to be shown of a seed: whether there is a leak to prevent, and whether it is."""
    by_name = {row["row"]: row for row in rows}
    if not {"only", "public"} <= by_name.keys():
        return {}
    only, public = (_rate(by_name[name]) for name in ("only", "public"))
    rest = [_rate(row).share for name, row in by_name.items() if name.startswith(("redacted", "jft", "schedule"))]
    return {
        "only_in_1_to_9_percent": 0.01 <= only.share <= 0.09,
        "public_minus_only": difference(public, only),
        "others_minus_only": float(np.mean(rest)) - only.share if rest else None,
    }


def _rate(row: dict[str, Any]) -> Rate:
    return Rate(**row["leaks"]["classifier"])


def policy_table(data: Data) -> dict[str, dict[str, float]]:
    """What each policy hides of all words, of the words that annotators put into slots, and of names, as shares."""
    policies: dict[str, Policy] = {name: data.policy(name) for name in ("keywords", "classifier")}
    policies |= {"patterns": PatternPolicy(KINDS, (USR,)), "slots": SlotPolicy("slots", (USR,))}
    found = {}
    for name, policy in policies.items():
        flags = np.concatenate([policy.flags(row) for row in data.private])
        labels = np.concatenate([_word_labels(row) for row in data.private])
        groups = {"words": labels == labels, "slots": ~np.isin(labels, ["O", "?"]), "names": labels == "name"}
        found[name] = {group: round(float(flags[among].mean()), 3) for group, among in groups.items()}
    return found


def _word_labels(row: Row) -> list[str]:
    """One label for each word; the planted secrets have none."""
    words, labels = len(row["text"].split()), row["slots"].split()
    return [*labels, *["O"] * (words - len(labels))][:words]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="multidogo_turn.parquet")
    parser.add_argument("--prepared", type=Path, default=Path("runs/dialogs"))
    parser.add_argument("--work", type=Path, default=Path("runs/domain_private_table"))
    parser.add_argument("--rows", nargs="+", default=["all"], help=f"all, or some of {', '.join(plans(2, 0))}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=float, default=24.0, help="conversations of a step, expected")
    parser.add_argument("--tokens", type=int, default=64, help="of a conversation that are read")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--prompts", type=int, default=120)
    parser.add_argument("--samples", type=int, default=2, help="of each prompt")
    parser.add_argument("--new-tokens", type=int, default=16, help="of a sample")
    parser.add_argument("--tested", type=int, default=60, help="conversations whose perplexity is measured")
    parser.add_argument("--base", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=10, help="the last ones, which are trained")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--policies", action="store_true", help="say what each policy hides, and train nothing")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/domain_private.json")
    return parser.parse_args()


def main() -> None:
    """Run, or find, all rows, and say what they show."""
    given = _arguments()
    prepare(given.data, given.prepared)
    _folder(given).mkdir(parents=True, exist_ok=True)
    if given.policies:
        print(json.dumps(policy_table(Data(given.prepared, Key.for_tests())), indent=1))
        return
    names = list(plans(2, 0)) if given.rows == ["all"] else given.rows
    for seed in given.seeds:
        given.seed = seed
        print(verdicts(run_seed(given, names)), flush=True)
    if given.json:
        write_results(given)


if __name__ == "__main__":
    main()
