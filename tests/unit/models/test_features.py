"""Packed documents see nothing but themselves, a cut trunk is the whole trunk, and heads with adapters fold exactly."""

import copy
import dataclasses
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.language import row_nll
from rayprivacy.methods.seqpate.students import adapted_model
from rayprivacy.models import adapters
from rayprivacy.models.adapters import HeadAdapter, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import PAD, Encoded, Features, encode, layout, pack, side_by_side
from rayprivacy.models.layers import ARCHITECTURES, lower_trunk, upper_trunk
from rayprivacy.models.save import save_model

FIRST = "what do you like to eat for dinner"
SECOND = "the way to the library"


def _documents(row):
    return [row.ids[row.segment == number].tolist() for number in range(int(row.segment.max()) + 1)]


def _hidden(backbone, row):
    """The trunk's hidden states before they are rounded to bfloat16."""
    kept: list[torch.Tensor] = []
    trunk = backbone.model.base_model
    hook = trunk.register_forward_hook(lambda _module, _inputs, out: kept.append(out.last_hidden_state[0].clone()))
    encode(backbone, _documents(row), 64, 1)
    hook.remove()
    return kept[0]


@pytest.fixture
def pair(tiny_backbone):
    return [tiny_backbone.document(text, 40) for text in (FIRST, SECOND)]


documents = st.lists(st.lists(st.integers(1, 399), min_size=1, max_size=20), max_size=12)


@given(documents, st.integers(1, 24), st.integers(1, 6))
def test_pack_keeps_whole_documents_in_fixed_rows(docs, row_tokens, max_rows):
    rows = pack(docs, row_tokens, max_rows)
    assert len(rows) <= max_rows
    cut = sorted(tuple(document[:row_tokens]) for document in docs)
    packed = sorted(tuple(document) for row in rows for document in _documents(row))
    for row in rows:
        assert row.ids.shape == row.segment.shape == (row_tokens,)
        assert row.ids.dtype == row.segment.dtype == torch.int64
        full = int((row.segment != PAD).sum())
        assert (row.segment[:full] != PAD).all(), "padding comes last"
        assert (row.segment[:full].diff() >= 0).all()
    for document in packed:
        cut.remove(document)  # raises when a row holds what was never given
    room = [row_tokens - int((row.segment != PAD).sum()) for row in rows]
    if cut:
        assert len(rows) == max_rows, "a document was left out although another row was allowed"
        assert min(map(len, cut)) > max(room, default=0), "a document was left out although it fits"
    if max_rows >= len(docs):
        assert not cut, "nothing is lost when every document could have a row"


@given(documents, st.integers(1, 24))
def test_positions_masks_and_predictions_stay_inside_a_document(docs, row_tokens):
    for row in pack(docs, row_tokens, 4):
        expected_positions = [place for document in _documents(row) for place in range(len(document))]
        assert row.positions.tolist() == [*expected_positions, *[0] * (row_tokens - len(expected_positions))]
        owner, mask = row.segment.tolist(), row.mask.tolist()
        for i in range(row_tokens):
            assert mask[i] == [j <= i and owner[i] == owner[j] for j in range(row_tokens)]
        assert bool(row.mask.diagonal().all()), "a row of the mask without any position gives NaN"
        predicts = Encoded(row.ids[None], row.segment[None], torch.zeros(1, row_tokens, 0)).predicts[0]
        assert int(predicts.sum()) == sum(len(document) - 1 for document in _documents(row))
        for i in predicts.nonzero().flatten().tolist():
            assert row.segment[i] == row.segment[i + 1] != PAD


def test_hidden_states_of_a_document_are_the_same_alone_and_packed_second(tiny_backbone, pair):
    first, second = pair
    (alone,) = pack([second], 64, 1)
    (packed,) = pack([first, second], 64, 1)
    after = _hidden(tiny_backbone, packed)[len(first) : len(first) + len(second)]
    before = _hidden(tiny_backbone, alone)[: len(second)]
    assert (after - before).abs().max() < 1e-4
    assert before.abs().max() > 0.1
    unpacked = tiny_backbone.model.base_model(input_ids=torch.tensor([second])).last_hidden_state[0]
    assert (before - unpacked).abs().max() < 1e-4, "the packed trunk is the model's own forward pass"


def test_hidden_states_depend_on_no_neighbour_in_the_row_and_no_future(tiny_backbone, pair):
    first, second = pair
    other = [7 + token % 100 for token in first]
    (row,), (changed,) = pack([first, second], 64, 1), pack([other, second], 64, 1)
    inside = slice(len(first), len(first) + len(second))
    before, after = _hidden(tiny_backbone, row), _hidden(tiny_backbone, changed)
    assert torch.equal(before[inside], after[inside])
    assert not torch.equal(before[: len(first)], after[: len(first)])
    other = [*first[:4], *((7 + token) % 400 for token in first[4:])]
    before, after = (_hidden(tiny_backbone, pack([ids], 64, 1)[0]) for ids in (first, other))
    assert torch.equal(before[:4], after[:4])
    assert not torch.equal(before[4], after[4])
    # Features pair each state with the next token.
    first, second = pair
    features = encode(tiny_backbone, [first, second], 64, 1).examples
    assert features.targets.tolist() == first[1:] + second[1:]
    assert features.hidden.dtype == torch.bfloat16
    hidden = _hidden(tiny_backbone, pack([first, second], 64, 1)[0])
    kept = [*range(len(first) - 1), *range(len(first), len(first) + len(second) - 1)]
    assert torch.equal(features.hidden, hidden[kept].bfloat16())


def test_a_call_ends_where_its_longest_row_does(tiny_backbone, pair):
    first, second = pair
    asked: list[tuple[int, ...]] = []
    trunk = tiny_backbone.model.base_model
    seen = lambda _module, _args, given: asked.append(given["input_ids"].shape)  # noqa: E731
    handle = trunk.register_forward_pre_hook(seen, with_kwargs=True)
    found = encode(tiny_backbone, [first, second], 64, 2)
    whole = encode(tiny_backbone, [[*first, *second], [7] * 64], 64, 2)
    handle.remove()
    assert asked == [(1, -(-(len(first) + len(second)) // 8) * 8), (2, 64)]
    assert len(first) + len(second) < asked[0][1] < 64
    torch.testing.assert_close(found.hidden[0, : len(first)], whole.hidden[0, : len(first)], rtol=0.02, atol=0.02)
    assert not found.hidden[0, asked[0][1] :].any()
    # A shard has at most the public number of examples.
    flood = [tiny_backbone.document("bread " * 200, 10_000)] * 30
    for max_rows in (1, 2):
        features = encode(tiny_backbone, flood, 32, max_rows).examples
        assert len(features) == max_rows * 31
    rows = pack([[1] * 7, [2] * 7, [3] * 7, [4] * 3], row_tokens=10, max_rows=2)
    assert [_documents(row) for row in rows] == [[[1] * 7, [4] * 3], [[2] * 7]], "small ones still fill gaps"
    none = encode(tiny_backbone, [], 16, 4).examples
    assert (none.hidden.shape, none.hidden.dtype) == ((0, tiny_backbone.width), torch.bfloat16)
    assert features.hidden.isfinite().all()


LAYERS = 4


def _random_base(architecture, dtype, like):
    shape = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = AutoConfig.for_model(architecture, **shape, **heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    return dataclasses.replace(like, model=model)


@torch.no_grad()
def _put_together(backbone, cut, inputs):
    below = lower_trunk(backbone, cut)(**inputs, use_cache=False).last_hidden_state
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    states: torch.Tensor = upper_trunk(backbone, cut)(inputs_embeds=below, **rest, use_cache=False).last_hidden_state
    return states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", range(LAYERS + 1))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_parts_are_the_whole(architecture, cut, dtype, tiny_backbone, public_sentences):
    backbone = _random_base(architecture, dtype, tiny_backbone)
    rows = pack([backbone.document(text, 30) for text in public_sentences], 64, 8)
    inputs = {"input_ids": torch.stack([row.ids for row in rows]), **layout(rows, dtype, torch.device("cpu"))}
    assert (inputs["attention_mask"] < 0).any(), "the mask is not trivial"
    with torch.no_grad():
        whole = backbone.model.base_model(**inputs, use_cache=False).last_hidden_state
    assert torch.equal(_put_together(backbone, cut, inputs), whole)


def test_the_parts_share_the_weights_and_not_the_structure(tiny_backbone):
    whole = tiny_backbone.model.base_model
    before = tiny_backbone.model.config.to_json_string()
    lower, upper = lower_trunk(tiny_backbone, 1), upper_trunk(tiny_backbone, 1)
    storage = {parameter.data_ptr() for parameter in whole.parameters()}
    for part in (lower, upper):
        assert {parameter.data_ptr() for parameter in part.parameters()} < storage
    upper.layers[0].mlp = torch.nn.Identity()
    assert not isinstance(whole.layers[1].mlp, torch.nn.Identity)
    assert tiny_backbone.model.config.to_json_string() == before
    assert [layer.self_attn.layer_idx for layer in whole.layers] == [0, 1]
    # A cut outside the base is refused.
    for cut in (-1, 3):
        with pytest.raises(ConfigError, match=f"after layer {cut} and model.base has 2 layers"):
            upper_trunk(tiny_backbone, cut)
    config = AutoConfig.for_model("gpt2", vocab_size=50, n_embd=8, n_layer=1, n_head=1)
    other = dataclasses.replace(tiny_backbone, model=AutoModelForCausalLM.from_config(config))
    with pytest.raises(ConfigError, match=r"model\.base is a 'gpt2' model.*teachers\.kind 'square'"):
        lower_trunk(other, 0)


def _random(basis, rank_in, rank_out):
    draw = torch.Generator().manual_seed(rank_in * 1000 + rank_out)
    return HeadAdapter(basis, torch.randn(rank_in, rank_out, generator=draw) * 0.5)


def _logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]  # type: ignore[operator]


@pytest.mark.parametrize(("rank_in", "rank_out"), [(1, 1), (3, 16), (16, 3)])
def test_the_folded_head_gives_the_logits_of_the_formula(tiny_backbone, tiny_features, tiny_basis, rank_in, rank_out):
    adapter = _random(tiny_basis, rank_in, rank_out)
    hidden, P, S = tiny_features.hidden.float(), tiny_basis.inward[:, :rank_in], tiny_basis.outward[:rank_out]
    adapted = adapter(hidden) @ tiny_backbone.head.T
    assert (adapted - hidden @ adapter.fold(tiny_backbone.head).T).abs().max() < 1e-4
    assert (adapted - (hidden + hidden @ P @ adapter.matrix @ S) @ tiny_backbone.head.T).abs().max() < 1e-4
    assert (adapted - hidden @ tiny_backbone.head.T).abs().max() > 0.01, "the adapter does something"
    zeros = HeadAdapter.zeros(tiny_basis, rank_in, rank_out)
    assert torch.equal(zeros(tiny_features.hidden), tiny_features.hidden.float())
    assert torch.equal(zeros.fold(tiny_backbone.head), tiny_backbone.head)


def test_bases_have_their_properties(tiny_backbone, tiny_features, tiny_basis):
    assert (tiny_basis.outward @ tiny_basis.outward.T - torch.eye(16)).abs().max() < 1e-4
    white = tiny_features.hidden.float() @ tiny_basis.inward
    assert (white.T @ white / len(white) - torch.eye(16)).abs().max() < 1e-3
    few = Features(tiny_features.hidden[:9], tiny_features.targets[:9])
    assert public_basis(tiny_backbone, few, rank=1000, shortlist=20).inward.shape == (64, 9), "what the text spans"
    # Outward rows span the strongest directions of the head.
    logits = tiny_features.hidden.float() @ tiny_backbone.head.T
    frequency = torch.softmax(logits, -1).mean(0)
    centred = tiny_backbone.head - frequency @ tiny_backbone.head
    spread = ((centred @ tiny_basis.outward.T) ** 2 * frequency[:, None]).sum(0)
    assert (spread.diff() <= 1e-5).all(), "strongest first"
    strongest = torch.linalg.svdvals(centred * frequency.sqrt()[:, None])[:16] ** 2
    assert torch.allclose(spread, strongest, rtol=1e-2)

    for shortlist in (2, 10, 400):
        tokens = public_basis(tiny_backbone, tiny_features, rank=4, shortlist=shortlist).shortlist
        assert tokens.shape == (shortlist,)
        assert (tokens.diff() > 0).all()
        assert {tiny_backbone.start, tiny_backbone.end} <= set(tokens.tolist())


def test_a_saved_student_replaces_an_older_one_and_loads_the_same(tiny_backbone, tiny_features, tiny_basis, tmp_path):
    adapter = _random(tiny_basis, 8, 16)
    ids = tiny_backbone.document("could you tell me the way to the market please", 40)
    before = _logits(tiny_backbone.model, ids)
    student = adapted_model(tiny_backbone, adapter)
    expected = _logits(student, ids)
    hidden = tiny_backbone.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    assert (expected - adapter(hidden) @ tiny_backbone.head.T).abs().max() < 1e-4
    out = tmp_path / "model"
    for name in ("model", ".model.tmp"):  # an older one, and one that was cut short
        (tmp_path / name).mkdir()
        (tmp_path / name / "stale.bin").touch()
    save_model(student, tiny_backbone.tokenizer, out, "seqpate-test", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(_logits(loaded, ids), expected)
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.lm_head.weight, student.lm_head.weight)
    assert torch.equal(loaded.model.embed_tokens.weight, tiny_backbone.model.model.embed_tokens.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not (out / "stale.bin").exists()
    assert AutoTokenizer.from_pretrained(out).get_vocab() == tiny_backbone.tokenizer.get_vocab()
    assert torch.equal(_logits(tiny_backbone.model, ids), before)
    assert tiny_backbone.model.config.tie_word_embeddings


@pytest.fixture
def two_threads():
    """What a process has that Ray did not start: no piece may notice."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_model_that_remembers_the_longest_row_reads_nobody_through_padding():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, **size, **ends, max_position_embeddings=32, rope_parameters=rope)
    )
    backbone = Backbone(None, 0, 0, model=model.eval())

    def states(*lengths):
        return encode(backbone, [list(range(1, length + 1)) for length in lengths], 64, 8).hidden

    alone = states(30, 30, 20)  # two rows, the second of which has 40 places of padding
    states(30, 30, 5)
    assert torch.equal(states(30, 30, 20), alone)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("positions", [0, 1, adapters.BLOCK + 3])
@pytest.mark.parametrize("vocabulary", [adapters.PIECES - 1, 101])
def test_the_loss_and_its_gradient_are_those_of_torch(positions, vocabulary):
    draw = torch.Generator().manual_seed(2)
    head = torch.randn(vocabulary, 16, generator=draw)
    states = torch.randn(positions, 16, generator=draw).mul_(5).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), generator=draw)
    wanted = torch.nn.functional.cross_entropy(states.double() @ head.double().T, targets, reduction="sum")
    (3 * wanted).backward()
    exact, states.grad = states.grad, None
    bits = set()
    for threads in (1, 2, 3):
        loss = adapters.summed_cross_entropy(states, targets, head, threads)
        (3 * loss).backward()
        assert torch.allclose(loss.double(), wanted, rtol=1e-5, atol=1e-6)
        assert torch.allclose(states.grad, exact, rtol=1e-4, atol=1e-4)
        bits.add((loss.detach().numpy().tobytes(), states.grad.numpy().tobytes()))
        states.grad = None
    assert len(bits) == 1


@pytest.mark.usefixtures("two_threads")
def test_pieces_come_back_in_order_and_the_setting_of_threads_stays():
    before = torch.get_num_threads()
    for threads in (1, 2):
        assert side_by_side(lambda piece: piece * 2, range(20), threads) == [2 * piece for piece in range(20)]
        assert side_by_side(lambda _: torch.get_num_threads(), range(4), threads) == [1] * 4
        assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda piece: 1 / piece, [1, 0], 2)
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_and_losses_of_rows_are_those_of_one_thread(tiny_backbone, public_sentences, dtype):
    model = tiny_backbone.model
    backbone = replace(tiny_backbone, model=copy.deepcopy(model).to(dtype))
    documents = [backbone.document(text, 30) for text in public_sentences * 3]
    bits = set()
    for threads in (1, 2, 3):
        rows = encode(backbone, documents, 32, len(documents), threads=threads)
        nll = row_nll(rows.hidden, rows, backbone.head, threads)
        assert float(nll.sum()) > 0
        assert not encode(backbone, [[1, 2, 3]], 32, 1, threads=threads).hidden[0, 8:].any()
        bits.add((rows.hidden.view(torch.int16).numpy().tobytes(), nll.numpy().tobytes()))
    assert len(bits) == 1
