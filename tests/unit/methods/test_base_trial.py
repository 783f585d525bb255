"""A base that cannot carry a run is refused in one sentence, before there is an account or a directory."""

import json
import shutil
from contextlib import closing

import pytest
import transformers as hf
from peft import LoraConfig, get_peft_model
from recipes import GENERATOR, SEQPATE
from safetensors.torch import load_file, save_file

import rayprivacy as rp
from rayprivacy.blocks import trial
from rayprivacy.blocks.match_plan import opener_tokens
from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import method_of, parse_recipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.trainer.method import LABEL_TOKENS, TrainerRecipe, reading_of

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = SHAPE | {"num_key_value_heads": 2, "max_position_embeddings": 128}
FULL = {"adapter": {"kind": "full"}}
STUDENT = {"method": "seqpate"}
WORDS = STUDENT | {"match": {"words": "profile.json"}}


def _config(out, tiny, kind, config, vocabulary=400):
    """A tiny random model of another kind, with the tokenizer of the tiny base."""
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny)
    config.update({"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 1})
    kind(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def _model(kind, config, **more):
    return lambda out, tiny: _config(out, tiny, getattr(hf, kind), getattr(hf, config)(**more))


def _changed(change):
    def build(out, tiny):
        shutil.copytree(tiny, out, dirs_exist_ok=True)
        change(out)

    return build


def _adapter(out, tiny):
    model = get_peft_model(hf.AutoModelForCausalLM.from_pretrained(tiny), LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(out)
    hf.AutoTokenizer.from_pretrained(tiny).save_pretrained(out)


def _weights(change):
    def damage(out):
        tensors = change(load_file(out / "model.safetensors"))
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    return _changed(damage)


def _endless(value):
    def change(tensors):
        tensors["model.norm.weight"][3] = value
        return tensors

    return _weights(change)


def _pointer(name):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 269060552\n"
    return _changed(lambda out: (out / name).write_text(text))


def _own_code(out):
    config = json.loads((out / "config.json").read_text())
    config |= {"model_type": "brandnew", "auto_map": {"AutoConfig": "code_x.X", "AutoModelForCausalLM": "code_x.Y"}}
    (out / "config.json").write_text(json.dumps(config))
    (out / "code_x.py").write_text(f"open({str(out / 'ran')!r}, 'w')\nraise SystemExit\n")


def _with_pictures(out, tiny):
    text = hf.Gemma3TextConfig(vocab_size=400, head_dim=16, bos_token_id=0, eos_token_id=1, **LLAMA)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.Gemma3Config(text_config=text, vision_config=vision | {"image_size": 28, "patch_size": 14})
    hf.Gemma3ForConditionalGeneration(config).save_pretrained(out)
    hf.AutoTokenizer.from_pretrained(tiny).save_pretrained(out)


def _more_tokens(out, tiny):
    _config(out, tiny, hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA), vocabulary=300)


# name of the base: how it is made, keys of the recipe, what is said of it
REFUSED = {
    "an adapter": (_adapter, FULL, r"is an adapter .* merge it"),
    "an adapter, for a student": (_adapter, STUDENT, r"is an adapter .* merge it"),
    "an adapter beside a model": (
        _changed(lambda out: (out / "adapter_config.json").write_text("{}")),
        {},
        r"is an adapter",
    ),
    "a pointer in place of weights": (_pointer("model.safetensors"), {}, r"model\.safetensors is a Git LFS pointer"),
    "a pointer in place of words": (_pointer("tokenizer.json"), STUDENT, r"tokenizer\.json is a Git LFS pointer"),
    "weights that end too soon": (
        _changed(lambda out: (out / "model.safetensors").write_bytes(b"\xff" * 40)),
        {},
        r"could not be loaded \(SafetensorError: ",
    ),
    "a config that is no JSON": (
        _changed(lambda out: (out / "config.json").write_text("{")),
        {},
        r"could not be loaded",
    ),
    "code of its own": (_changed(_own_code), {}, r"code of its own, which is never run"),
    "weights that are not there": (
        _weights(lambda tensors: {name: each for name, each in tensors.items() if "mlp.up" not in name}),
        {},
        r"weights are not whole, 'model\.layers\.0\.mlp\.up_proj\.weight' and 1 more are missing",
    ),
    "a number that is none": (_endless(float("nan")), {}, r"'model\.norm\.weight' is no finite number"),
    "an endless number": (_endless(float("inf")), STUDENT, r"'model\.norm\.weight' is no finite number"),
    "fewer tokens than its tokenizer": (_more_tokens, {}, r"has token 399, and the model knows 300 tokens"),
    "one that sees later tokens": (
        _model("RobertaForMaskedLM", "RobertaConfig", max_position_embeddings=128, **SHAPE),
        {},
        r"type 'roberta', which sees later tokens",
    ),
    "another that does, for a student": (
        _model("ElectraForMaskedLM", "ElectraConfig", max_position_embeddings=128, embedding_size=32, **SHAPE),
        STUDENT,
        r"type 'electra'",
    ),
    "an encoder with a decoder": (
        _model("T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4),
        {},
        r"could not be loaded \(ValueError: Unrecognized configuration class",
    ),
    "one that reads pictures": (_with_pictures, {}, r"reads more than text"),
    "too few positions": (
        _model("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=12),
        {},
        r"positions for 12 tokens, and texts of up to 14 ",
    ),
    "too few, for a student": (
        _model("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=12),
        STUDENT,
        r"positions for 12 tokens, and texts of up to 42 ",
    ),
    "flattened rows": (
        _model("OPTForCausalLM", "OPTConfig", hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4),
        {},
        r"the rows cannot be told apart",
    ),
    "a state in place of attention": (
        _model("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=8),
        {},
        r"type 'mamba', to which PEFT adds no LoRA matrices",
    ),
    "layers without a rule": (
        _model("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=8),
        FULL,
        r"modules of kind Conv1d, MambaMixer",
    ),
    "a state, for a student": (
        _model("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=8),
        STUDENT,
        r"type 'mamba'.* several documents in one row",
    ),
    "distances, for a student": (
        _model("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4),
        STUDENT,
        r"type 'bloom'.* several documents in one row",
    ),
}


def _recipe(base, folder, keys):
    """A recipe of a method on a corpus that is never read."""
    method = SEQPATE if keys.get("method") == "seqpate" else {**GENERATOR, "codes": {}}
    privacy = {"ledger": f"sqlite:///{folder}/ledger.db", "key": str(folder / "key"), "account": "chat"}
    corpus = {"source": str(folder / "chat.csv"), "user": "user", "text": "text"}
    (folder / "chat.csv").write_text("user,text\n" + "".join(f"u{n},hello {n}\n" for n in range(30)))
    return {**method, "corpus": corpus, "privacy": privacy, "model": {"base": str(base), "dtype": "float32"}, **keys}


@pytest.mark.parametrize("name", REFUSED)
def test_a_base_is_refused_before_there_is_an_account(name, tiny_base, tmp_path):
    build, keys, said = REFUSED[name]
    base = tmp_path / "base"
    build(base, tiny_base)
    with pytest.raises(ConfigError, match=rf"\Amodel\.base (is|has) [^\n]*{said}[^\n]*\.\Z"):
        rp.run(rp.load_recipe(_recipe(base, tmp_path, keys)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "key").exists()
    assert not (base / "ran").exists()
    if (tmp_path / "ledger.db").exists():
        with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
            assert not ledger.accounts()


def test_what_stands_in_front_of_a_text_needs_positions_too(tiny_base, tmp_path):
    """Otherwise the step that first samples a user of a long text behind it ends a run that was charged."""
    base = tmp_path / "base"
    _model("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=16)(base, tiny_base)
    keys = _recipe(base, tmp_path, {"codes": {"values": {"topic": ["food", "pets"]}}})
    labels = {"corpus": keys["corpus"] | {"labels": ["topic"]}}
    with pytest.raises(ConfigError, match=r"positions for 16 tokens, and texts of up to (1[7-9]|[2-9]\d)"):
        method_of(parse_recipe(keys | labels)).try_base(parse_recipe(keys | labels))
    trainer = TrainerRecipe.parse(
        {"corpus": {"user": "user", "text": "text", "labels": ["topic"]}, "training": {"max_tokens": 12}}
        | {name: keys[name] for name in ("privacy", "model")}
    )
    with pytest.raises(ConfigError, match=f"positions for 16 tokens, and texts of up to {LABEL_TOKENS + 14} "):
        trial.load_base(trainer, [reading_of(trainer)])


def test_what_a_text_is_begun_with_needs_positions_too(tiny_base, tmp_path):
    """Otherwise a run ends when its votes are paid for and it writes behind a prompt, or behind an opener."""
    (tmp_path / "prompts.txt").write_text("once upon a time in a land\n")
    writing = {"generation": {"max_tokens": 100, "prompt_words": [1, 5]}, "prompts": str(tmp_path / "prompts.txt")}
    base, recipe = load_backbone(ModelConfig(base=str(tiny_base))), _recipe(tiny_base, tmp_path, STUDENT | writing)
    prompt = len(base.ids("once upon a time in"))
    assert trial._longest_prompt(parse_recipe(recipe), base) == prompt < opener_tokens(parse_recipe(WORDS)) == 32
    recipe["generation"]["max_tokens"] = base.model.config.max_position_embeddings - 1 - prompt
    trial.load_base(parse_recipe(recipe), [])
    with pytest.raises(ConfigError, match=r"positions for \d+ tokens, and texts of up to \d+ "):
        trial.load_base(parse_recipe(recipe | {"match": WORDS["match"]}), [])
    recipe["generation"]["max_tokens"] += 1
    with pytest.raises(ConfigError, match=r"positions for \d+ tokens, and texts of up to \d+ "):
        trial.load_base(parse_recipe(recipe), [])


@pytest.mark.parametrize("name", ["an adapter", "a pointer in place of weights"])
def test_a_plan_says_so_too(name, tiny_base, tmp_path):
    build, keys, said = REFUSED[name]
    build(tmp_path / "base", tiny_base)
    with pytest.raises(ConfigError, match=said):
        rp.plan(rp.load_recipe(_recipe(tmp_path / "base", tmp_path, keys)))


@pytest.mark.parametrize("keys", [{}, FULL, STUDENT, STUDENT | {"student": {"kind": "lora", "warm_steps": 1}}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_that_fits_is_the_one_that_the_run_goes_on_with(keys, dtype, tiny_base, tiny_backbone, tmp_path):
    recipe = parse_recipe(_recipe(tiny_base, tmp_path, keys) | {"model": {"base": str(tiny_base), "dtype": dtype}})
    found = method_of(recipe).try_base(recipe)
    assert found.digest == load_backbone(recipe.model).digest, "a trial leaves it as it was"
    assert not any(parameter.requires_grad for parameter in found.model.parameters())


def test_what_comes_back_as_another_model_is_refused(tiny_backbone, tiny_base, monkeypatch):
    config = ModelConfig(base=str(tiny_base), dtype="float32")
    model = merged(trainable(tiny_backbone, AdapterConfig(kind="full")), tiny_backbone)
    trial.try_saving(config, tiny_backbone, model)
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: 2 * output)  # which nobody saves
    with pytest.raises(ConfigError, match="another model when it was saved and loaded again"):
        trial.try_saving(config, tiny_backbone, model)
    # A large one is not written: its weights must be asked for by the same names and shapes.
    monkeypatch.setattr(trial, "SAVED_BYTES", 0)
    trial.try_saving(config, tiny_backbone, tiny_backbone.model)
    model.config.intermediate_size += 1
    with pytest.raises(ConfigError, match="another model"):
        trial.try_saving(config, tiny_backbone, model)
