"""A tagger on the real path, from rows to clipped sums: who depends on whom, and how far one user moves a sum."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import of_batches, some
from small_tagger import INTENTS, SLOTS, WORDS, labelled, save_tiny_gpt2
from transformers import AutoModelForTokenClassification, T5Config

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, packed, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, MicroBatchGradients, mean_losses, micro_batches
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.methods.edp_sgd.reading import TaggedRows
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.tagging.loss import TaggerLoss, Unpacked, logits_of, predicted
from rayprivacy.tagging.model import check_length, load_tagger, saved_tagger
from rayprivacy.tagging.settings import TaggerConfig, Tags

NORM, TOKENS, MOST, TAGS = 0.5, 128, 14, Tags(INTENTS, SLOTS)
LOSS = TaggerLoss(len(TAGS.all_intents), len(TAGS.names))
Unit = list[Document]
FULL, LORA = AdapterConfig(kind="full"), AdapterConfig(kind="lora", rank=4)


@dataclass(frozen=True)
class Kind:
    """A tagger: its base, what of it is trained, and how its words are scored."""

    base: str
    adapter: AdapterConfig = FULL
    crf: bool = False
    dtype: Any = "float32"
    taught: int = 5  # steps after which it knows a request, and is not yet so sure that gradients vanish
    learnt: int = 80  # steps after which it knows some


KINDS = {
    "bert": Kind("bert"),
    "bert-bfloat16": Kind("bert", dtype="bfloat16"),
    "bert-crf-bfloat16": Kind("bert", crf=True, dtype="bfloat16"),
    "bert-lora": Kind("bert", LORA, taught=10),
    "llama-lora": Kind("llama", LORA),
    "llama-lora-crf-bfloat16": Kind("llama", LORA, crf=True, dtype="bfloat16"),
    "gpt2-crf": Kind("gpt2", crf=True),
    "bilstm-crf": Kind("bilstm", crf=True, taught=2, learnt=30),
}
ALWAYS = ("bert", "bert-crf-bfloat16", "llama-lora-crf-bfloat16", "bilstm-crf")
EACH = pytest.mark.parametrize("kind", some(KINDS, *ALWAYS))
EACH_WITH_RULES = pytest.mark.parametrize("kind", some([name for name in KINDS if name != "bilstm-crf"], *ALWAYS))


@dataclass
class Tagger:
    """One of these, loaded; `model()` is a fresh one to train."""

    kind: Kind
    base: Backbone

    @property
    def losses(self):
        return partial(own_losses, loss=LOSS, low_precision=self.kind.dtype == "bfloat16")

    def model(self):
        return trainable(self.base, self.kind.adapter)


Taggers = Callable[[str], Tagger]


def _loaded(base, **given):
    usual = {"dtype": "float32", "intents": INTENTS, "slots": SLOTS}
    return load_backbone(TaggerConfig(base=str(base), **usual | given))


@pytest.fixture(scope="module")
def folders(tiny_bert, tiny_base, tmp_path_factory, one_thread):
    """The bases."""
    gpt2 = save_tiny_gpt2(tmp_path_factory.mktemp("tiny_gpt2"), tiny_base)
    return {"bert": tiny_bert, "llama": tiny_base, "gpt2": gpt2, "bilstm": "bilstm"}


@pytest.fixture(scope="module")
def taggers(folders):
    """Those of KINDS, by name."""

    @cache
    def loaded(name):
        kind = KINDS[name]
        return Tagger(kind, _loaded(folders[kind.base], dtype=kind.dtype, crf=kind.crf))

    return loaded


@pytest.fixture(scope="module")
def bert(taggers):
    """The first."""
    return taggers("bert").base


def _read(base, rows, most=MOST):
    return TaggedRows(TAGS, ("intent", "slots"), most)(rows, base, 0)


def _documents(base, *texts, most=MOST):
    labels = (dict(zip(("intent", "slots"), labelled(text), strict=True)) for text in texts)
    return _read(base, [{"text": text, **own} for text, own in zip(texts, labels, strict=True)], most)


def _unpacked(base, document):
    return Unpacked.of(packed([[document]], TOKENS, base.end)[0], LOSS.labels)


def _units(base):
    """Users of one to three requests of all lengths, and some who asked the same."""
    words = [*WORDS, "the", "cat", "you", "go"]
    dice = np.random.default_rng(3)

    def text():
        return " ".join(words[at] for at in dice.integers(len(words), size=dice.integers(1, 16)))

    same = [_documents(base, "you like soup")] * 3
    return [_documents(base, *(text() for _ in range(1 + at % 3))) for at in range(9)] + same


def _fit(model, losses, documents, base, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        for batch in packed([[each] for each in documents], TOKENS, base.end):
            losses(model, batch).sum().backward()
        optimizer.step()


def _seen(tagger, units):
    model = tagger.model()
    gradients = BookKeeping(model, Clipping(NORM, low_precision=tagger.kind.dtype == "bfloat16"))
    return of_batches(gradients, partial(tagger.losses, model), physical_batches(units, TOKENS, tagger.base.end))


@EACH_WITH_RULES
def test_one_more_user_changes_no_bit_of_the_others_and_moves_the_sum_by_c(taggers, kind):
    tagger = taggers(kind)
    *company, newcomer = _units(tagger.base)
    before, alone = _seen(tagger, company), _seen(tagger, [newcomer])
    assert before.each.total() == len(company)
    assert float(alone.total.norm()) == pytest.approx(NORM, rel=0.02), "it is longer than C, so the bound is reached"
    for place in (0, 5, len(company)):
        after = _seen(tagger, [*company[:place], newcomer, *company[place:]])
        assert after.each == before.each + alone.each
        assert float((after.total - before.total).norm()) <= NORM * (1 + 1e-5)


@EACH
def test_one_more_user_moves_a_micro_batch_by_almost_2c_and_never_more(taggers, kind):
    """The model knows what one user says, and another one says the opposite of the same words: the mean turns round."""
    tagger, norm = taggers(kind), 1e-3
    base, model = tagger.base, tagger.model()
    one = _documents(base, "soup soup")
    other = _read(base, [{"text": "soup soup", "intent": "go", "slots": "O O"}])
    _fit(model, tagger.losses, one, base, tagger.kind.taught)
    clipped = MicroBatchGradients(model, Clipping(norm))

    def aggregate(units):
        (batch,) = micro_batches([units], TOKENS, base.end)
        lazy = clipped(lambda: mean_losses(model, batch, tagger.losses), batch.by_unit)
        return torch.cat([lazy[each]().double().flatten() for each in clipped.parameters])

    assert float(aggregate([one]).norm()) == pytest.approx(norm, rel=1e-3)
    moved = [float((aggregate([*held, other]) - aggregate(held)).norm()) for held in ([one], [one] * 2, _units(base))]
    assert max(moved) <= 2 * norm * (1 + 1e-6)
    assert max(moved) > 1.7 * norm, moved


@EACH_WITH_RULES
def test_the_check_before_the_first_step_takes_a_tagger_and_refuses_one_that_mixes(taggers, kind):
    tagger = taggers(kind)
    model, clipping = tagger.model(), Clipping(NORM, low_precision=tagger.kind.dtype == "bfloat16")
    check_independence(model, tagger.losses, 14, TOKENS, clipping=clipping)

    def mixing(model, batch):
        own = LOSS(model, batch)
        return own * (1 + 1e-2 * own.detach().sum())

    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        check_independence(model, partial(tagger.losses, loss=mixing), 14, TOKENS)


def test_a_bert_reads_a_word_at_its_first_token(bert):
    read = _unpacked(bert, *_documents(bert, "zebras like soup"))
    given = bert.tokenizer(["zebras", "like", "soup"], is_split_into_words=True)
    assert read.tokens[0, read.real[0]].tolist() == given["input_ids"]
    assert torch.nonzero(read.codes[0]).flatten().tolist() == [0, *(given.word_ids().index(word) for word in range(3))]


@pytest.mark.parametrize("kind", ["llama-lora", "gpt2-crf"])
def test_a_causal_model_reads_a_word_at_its_last_token_and_sees_nothing_behind(taggers, kind):
    tagger = taggers(kind)
    base, model, beginnings = tagger.base, tagger.model(), ("zebras", "zebras like", "zebras like soup")
    tokens = [base.tokenizer(text, add_special_tokens=False)["input_ids"] for text in beginnings]
    assert tokens[2][: len(tokens[1])] == tokens[1], "as it is written, with a blank in front of a word"
    assert len(tokens[0]) > 1
    rows = [{"text": "zebras  like soup", "intent": "eat", "slots": "B-place O B-food"}]
    batch = packed([_read(base, rows)], TOKENS, base.end)[0]
    read = Unpacked.of(batch, LOSS.labels)
    assert read.tokens[0, read.real[0]].tolist() == [base.start, *tokens[2], base.end]
    assert torch.nonzero(read.codes[0]).flatten().tolist() == [0, *map(len, tokens)]
    codes = _unpacked(base, *_read(base, rows, len(tokens[0]) - 1)).codes[0]
    assert torch.nonzero(codes).flatten().tolist() == [0, len(tokens[0]) - 1], "the last that is left of the word"
    changed = Batch(batch.ids.clone(), batch.weights, 1)
    changed.ids[0, len(tokens[1]) + 1 :] += 7 * (LOSS.labels + 1)
    there, then = (logits_of(model, Unpacked.of(each, LOSS.labels)) for each in (batch, changed))
    assert torch.equal(there[0, : len(tokens[1]) + 1], then[0, : len(tokens[1]) + 1])


def test_a_word_of_which_the_tokenizer_makes_nothing_moves_no_label(bert):
    rows = [{"text": "soup \u200d soup home", "intent": None, "slots": None}]  # \u200d: a joiner, which is dropped
    food, place = TAGS.words("B-food B-place", 2)

    def by_word(most, said):
        ((intent, labels),) = TaggedRows(TAGS, ("intent", "slots"), most).by_word(rows, bert, [(1, said)])
        assert intent == 1
        return labels

    assert by_word(60, [food, place, food]) == [food, TAGS.outside, place, food]
    assert by_word(1, [food]) == [food, *[TAGS.outside] * 3], "the others were cut off"


@EACH
def test_every_word_of_any_text_has_one_label(taggers, kind):
    tagger = taggers(kind)
    plain = merged(tagger.model(), tagger.base)
    texts = ["", " ", "\u200d", "soup \u200d home", "a\u200db \u00ad soup", "zebras \ufffd\U0001f600 soup"]
    texts.append("soup home " * 30)
    rows = [{"text": text, "intent": None, "slots": None} for text in texts]
    for most in (1, 5, 40):
        reading = TaggedRows(TAGS, ("intent", "slots"), most)
        said = reading.by_word(rows, tagger.base, predicted(plain, TAGS, reading(rows, tagger.base, 0)))
        assert [len(labels) for _, labels in said] == [len(text.split()) for text in texts]


def test_padding_and_cut_text_and_odd_rows_are_read_silently(bert):
    rows = [
        {"text": "soup " * 40, "intent": "eat", "slots": "B-food " * 40},
        {"text": "soup home", "intent": None, "slots": None},
        {"text": "soup home", "intent": "unheard", "slots": "B-unheard B-place B-food I-food"},
        {"text": " ", "intent": "go", "slots": ""},
    ]
    documents = _read(bert, rows, 6)
    assert [len(each.ids) for each in documents[::3]] == [8, 2], "start, at most six tokens, end"
    assert _unpacked(bert, documents[0]).tokens[0, 0] == bert.start
    codes = [_unpacked(bert, each).codes[0] for each in documents[1:]]
    names = [[TAGS.names[code - 1] for code in row[row > 0]] for row in codes]
    assert names == [["intent:other", "O", "O"], ["intent:other", "O", "B-place"], ["intent:go"]]


@EACH
def test_it_learns_what_it_is_shown_and_is_loaded_as_it_was_saved(taggers, kind, tmp_path):
    tagger = taggers(kind)
    base, model = tagger.base, tagger.model()
    texts = ["you like soup", "we go home", "the cat sat on my mat", "bread and soup"]
    documents = _documents(base, *texts, most=60)  # an LSTM reads letters too
    _fit(model, tagger.losses, documents, base, tagger.kind.learnt)
    wanted = [(TAGS.intent(labelled(text)[0]), TAGS.words(labelled(text)[1], len(text.split()))) for text in texts]
    plain = merged(model, base)
    assert list(predicted(plain, TAGS, documents)) == wanted
    save_model(plain, base.tokenizer, tmp_path / "model", "release", "It was trained.")
    saved = load_tagger(saved_tagger(tmp_path / "model"))
    weights, kept = plain.state_dict(), saved.model.state_dict()
    assert weights.keys() == kept.keys()
    assert all(torch.equal(each, kept[name]) for name, each in weights.items())
    assert (saved.start, saved.end) == (base.start, base.end)
    assert list(predicted(saved.model, TAGS, documents)) == wanted
    if tagger.kind.base == "bilstm":
        return
    of_everybody = AutoModelForTokenClassification.from_pretrained(tmp_path / "model")
    theirs = of_everybody.state_dict()
    assert all(torch.equal(each, weights[name]) for name, each in theirs.items())
    assert weights.keys() - theirs.keys() == ({"crf.transitions.weight"} if tagger.kind.crf else set())


@pytest.mark.parametrize(("trained", "frozen"), [("all", ()), ("layers", ("bert.embeddings",)), ("heads", ("bert",))])
def test_only_what_is_asked_for_is_trained_and_clipped_to_c(tiny_bert, trained, frozen):
    base = _loaded(tiny_bert, trained=trained)
    model = trainable(base, AdapterConfig(kind="full"))
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad is not name.startswith(frozen or "nothing"), name
    alone = _seen(Tagger(Kind("bert"), base), _units(base)[:1])
    assert float(alone.total.norm()) == pytest.approx(NORM, rel=0.02)


@pytest.mark.parametrize("kind", ["bert-crf-bfloat16", "llama-lora-crf-bfloat16", "gpt2-crf"])
def test_heads_and_crf_are_trained_beside_lora_and_in_float32(folders, kind):
    kept = KINDS[kind]
    load = partial(_loaded, folders[kept.base], crf=kept.crf, dtype=kept.dtype)
    base = load(trained="heads")
    heads = {name for name, each in trainable(base, FULL).named_parameters() if each.requires_grad}
    head = "score" if kept.base == "llama" else "classifier"
    assert heads == {f"{head}.weight", f"{head}.bias", "crf.transitions.weight"}
    model = trainable(base, LORA)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert {name.removeprefix("base_model.model.") for name in trained if "lora_" not in name} == heads
    assert any("lora_" in name for name in trained)
    assert {each.dtype for each in trained.values()} == {torch.float32}
    layers = load(trained="layers")
    frozen = {name for name, each in trainable(layers, FULL).named_parameters() if not each.requires_grad}
    embeddings = ("bert.embeddings.", "model.embed_tokens.", "transformer.wte.", "transformer.wpe.")
    assert frozen == {name for name in layers.model.state_dict() if name.startswith(embeddings)}


def test_a_batch_without_padding_has_a_mask_like_any_other(bert, monkeypatch):
    """Else the kernel of a user's attention would depend on whether all others in the batch fill their rows."""
    real, seen = F.scaled_dot_product_attention, []

    def watched(*args, attn_mask=None, **kwargs):
        seen.append(None if attn_mask is None else attn_mask.shape)
        return real(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    filled, short = _documents(bert, "soup " * 20, most=6), _documents(bert, "soup")
    for units in ([filled] * 4, [filled, short, short, filled]):
        for batch in packed(units, TOKENS, bert.end):
            LOSS(bert.model, batch)
    assert len(seen) == 4, "two layers, twice"
    assert len(set(seen)) == 1
    assert None not in seen


def test_a_base_that_cannot_be_used_is_refused(taggers, tiny_bert, tmp_path):
    T5Config().save_pretrained(tmp_path / "t5")
    others = {"intents": ("other_things",), "slots": ()}
    for kind in ("bert", "bilstm-crf"):
        base = taggers(kind).base
        save_model(base.model, base.tokenizer, tmp_path / kind, "release", "It was trained.")
    for base, given, said in (
        (tiny_bert, {"layers": 3}, r"model.layers is 3 and the base has 2: give at most 2"),
        ("no/such/folder", {}, r"model.base is 'no/such/folder': it could not be loaded"),
        (tmp_path / "t5", {}, "a 't5': a tagger takes a BERT, a Llama or a GPT-2, so name one"),
        (tmp_path / "bert", others, "it could not be loaded"),  # a saved tagger that says something else
        (tmp_path / "bilstm-crf", others, "a bi-LSTM with other intents or slots"),
    ):
        with pytest.raises(ConfigError, match=said):
            _loaded(base, **given)
    with pytest.raises(ConfigError, match="holds no tagger that can be read"):
        saved_tagger(tmp_path)
    bert = taggers("bert").base
    check_length(bert.model, 62)
    with pytest.raises(ConfigError, match=r"training.max_tokens is 63 and model.base takes 62: give at most 62"):
        check_length(bert.model, 63)
