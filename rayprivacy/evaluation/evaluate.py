"""All figures of an evaluation in one dictionary: is synthetic text useful, and does it repeat private text?

Everything here reads private text without noise. The figures are internal: they are not covered by a certificate, and a
setting chosen by them has seen the private text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.private import Seal
from rayprivacy.evaluation.embeddings import DIMENSIONS, LAYERS, TOKENS, Matrix, embed, open_base, open_embedding
from rayprivacy.evaluation.fidelity import fidelity, fidelity_rows, has_mauve
from rayprivacy.evaluation.figures import LEVEL, REPLICATES, Better, FigureRow, Measured, paired
from rayprivacy.evaluation.language import BLEU_TEXTS
from rayprivacy.evaluation.memorisation import Features, distance_rows, run_rows
from rayprivacy.evaluation.settings import SCORED, EvaluationConfig
from rayprivacy.evaluation.texts import MAX_CHARS, DrawnTexts, Indexes, Texts, draw, halves, sample
from rayprivacy.evaluation.trees import tree_rows
from rayprivacy.evaluation.words import content_words, downstream, word_rows
from rayprivacy.models.backbone import Backbone

_SCHEMA_VERSION = 1
_WHY = "these figures were measured on private text without noise: internal, and covered by no certificate"
NO_HALVES = "the users of the real text do not split into two halves, so there is no reference"
NO_HOLDOUT = "no held-out text was given, so memorisation has no control"
NO_USERS = "no user column: intervals take each text for a user of its own, and are too narrow if users wrote several"
_NO_MAUVE = "mauve-text is not installed, so there is no MAUVE: pip install 'rayprivacy[mauve]'"
FEW_USERS = "fewer than 30 users: intervals are rough"
_FEW = 30
_DOWNSTREAM: Mapping[str, Better] = {"accuracy": "higher", "macro_f1": "higher", "most_frequent_label_accuracy": "near"}
_SEAL = Seal(RayPrivacyError, "report it, with the sizes of the files and the settings")


@_SEAL.around("the evaluation")
def evaluate(
    real: Texts,
    synthetic: Texts,
    holdout: Texts | None = None,
    config: EvaluationConfig | None = None,
    progress: Callable[[str], None] = lambda stage: None,
    opened: Mapping[str, Backbone] | None = None,
    searched: Iterable[Sequence[str]] | None = None,
) -> Measured:
    """Measure everything; the answer has sizes, settings, notes and a list of rows, marked `releasable: False`.

    `holdout` are real texts of users unknown to the model that wrote `synthetic`: the control of memorisation, and what
    classifiers are tested on. `progress` takes the name of each stage, `opened` are base models in memory by the name
    in `config`, and copies are looked for in `searched`, all private texts in blocks, where `real` is a sample.

    Raises:
        ConfigError: an embedding cannot be loaded, or `neighbours` is too large for the texts.
        CorpusError: the label column has nothing to learn.
    """
    config = config or EvaluationConfig()
    drawn = draw(real, synthetic, holdout, config)
    known: dict[str, Backbone] = dict(opened or {})
    if config.base is not None and config.base not in known:
        known[config.base] = open_base(config.base)
    embeddings = {name: known.get(name) or open_embedding(name) for name in dict.fromkeys(config.embeddings)}
    progress("embeddings")
    compared = [each.texts for each in (drawn.real, drawn.synthetic, drawn.holdout) if each is not None]
    features = {}
    for name, embedding in embeddings.items():
        ours, theirs, *held = embed(compared, embedding, config.seed)
        features[name] = Features(ours, theirs, held[0] if held else None)
    progress("fidelity")
    rows = _fidelity_rows(drawn, features, config)
    progress("words")
    rows += word_rows(drawn, known[config.base] if config.base is not None else None, config)
    progress("memorisation")
    blocks = [real.texts] if searched is None else searched
    rows += run_rows(blocks, drawn.synthetic, drawn.holdout, config.seed)
    rows += distance_rows(features, drawn.synthetic, drawn.holdout, config.seed)
    if config.tree is not None:
        progress("trees")
        rows += tree_rows(drawn)
    sizes: dict[str, int] = {}
    if config.label is not None:
        progress("downstream")
        found, sizes = _downstream_rows(real, synthetic, holdout, config)
        rows += found
    return _answer(rows, sizes, drawn, (real, synthetic, holdout), config)


def _fidelity_rows(drawn: DrawnTexts, features: Mapping[str, Features], config: EvaluationConfig) -> list[FigureRow]:
    target = {name: each.real[drawn.target] for name, each in features.items()}

    def against(other: dict[str, Matrix], texts: Texts, places: Indexes) -> Any:
        users = drawn.real.users[drawn.target], texts.users[places]
        return fidelity(target, other, users, config.neighbours, config.seed)

    synthetic = {name: each.synthetic[drawn.compared] for name, each in features.items()}
    ours = against(synthetic, drawn.synthetic, drawn.compared)
    if drawn.reference is None:
        return fidelity_rows(ours, None)
    reference = {name: each.real[drawn.reference] for name, each in features.items()}
    return fidelity_rows(ours, against(reference, drawn.real, drawn.reference))


def _downstream_rows(
    real: Texts, synthetic: Texts, holdout: Texts | None, config: EvaluationConfig
) -> tuple[list[FigureRow], dict[str, int]]:
    """Tested on the held-out texts, or without them on the second half of the real users."""
    train, test = real, holdout
    if test is None:
        parts = halves(real.users, config.seed)
        if parts is None:
            return [], {}
        train, test = real.take(parts[0]), real.take(parts[1])
    train, synthetic, test = (
        each.take(sample(len(each), config.max_texts, config.seed)) for each in (train, synthetic, test)
    )
    ours, theirs, sizes = downstream(train, synthetic, test, config.seed)
    return paired("downstream", _DOWNSTREAM, ours, theirs), sizes


def _answer(
    rows: list[FigureRow],
    sizes: dict[str, int],
    drawn: DrawnTexts,
    given: tuple[Texts, Texts, Texts | None],
    config: EvaluationConfig,
) -> Measured:
    names = ("real", "synthetic", "holdout")
    return {
        "schema_version": _SCHEMA_VERSION,
        "releasable": False,
        "why": _WHY,
        "inputs": {name: texts.summary() for name, texts in zip(names, given, strict=True) if texts is not None},
        "compared": {
            "real_target": len(drawn.target),
            "synthetic": len(drawn.compared),
            "reference": 0 if drawn.reference is None else len(drawn.reference),
            **sizes,
        },
        "settings": {
            **config.model_dump(mode="json"),
            "max_chars": MAX_CHARS,
            "embedding": {"tokens": TOKENS, "layers": LAYERS, "dimensions": DIMENSIONS},
            "intervals": {"level": LEVEL, "replicates": REPLICATES, "resampled": "users"},
            "samples": {"perplexity": SCORED, "bleu": BLEU_TEXTS},
        },
        "notes": _notes(drawn, given[0]),
        "rows": [row.plain() for row in rows],
        "content_words": content_words(drawn),
    }


def _notes(drawn: DrawnTexts, real: Texts) -> list[str]:
    said = {
        NO_HALVES: drawn.reference is None,
        NO_HOLDOUT: drawn.holdout is None,
        NO_USERS: not real.authored,
        FEW_USERS: len(np.unique(drawn.real.users)) < _FEW,
        _NO_MAUVE: not has_mauve(),
    }
    return [note for note, true in said.items() if true]
