"""A Llama model as one ONNX graph that reads and writes a cache, and sampling from it with ONNX Runtime in float32.

    tokens -> embedding -> layers: norm, attention over the cache, norm, gated product -> norm -> places -> logits

The weights lie in a file beside the graph. A text stands at the beginning of its row of the cache and its next token
behind it, so that rows of one batch may have other lengths: no token before a text has to be hidden. Attention is ONNX
Runtime's `GroupQueryAttention`, which writes the cache in place.

    prompts of a batch -> logits of the last tokens -> top k -> temperature -> top p -> draw -> finished texts leave -+
                                 ^                                                                                  |
                                 +---- the new tokens, one for each text that goes on <------------------------------+

The runtime computes logits, with the attention cache in our arrays, and no more. Tokens are drawn here, by a generator
of the batch, with the filters of transformers. All batches share one copy of the weights.

A small product gains nothing from a second core, and two batches do. So a batch is sampled by one thread, with a seed
of its own: its texts do not depend on what is sampled beside it, nor on how many threads there are.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.generation.settings import BATCH, SamplingConfig, has_graph
from rayprivacy.models.backbone import Documents

GRAPH = "model.onnx"
WEIGHTS = "weights"
MICROSOFT = "com.microsoft"
TOKENS, LENGTHS, LONGEST, PLACES, LOGITS = "tokens", "lengths", "longest", "places", "logits"
_ALIGNED = 4096
Array = npt.NDArray[Any]


def _past(name: str) -> str:
    """A tensor of the cache as an input; by its own name it is an output."""
    return f"past.{name}"


@torch.no_grad()
def write_graph(model: Any, folder: Path) -> Path:
    """Write the graph of a Llama model, `GRAPH`, which refers to `WEIGHTS`, into a new folder, which is returned.

    Its inputs are `tokens` int64 [texts, width], `lengths` int32 [texts] (the last place of each text), `longest` int32
    [1], `places` int64 [places] (of the tokens, row by row, whose successors are wanted), and the cache, float32
    [texts, key heads, room, width of a head]. Another model, or one that has more to it, is a ValueError.
    """
    import onnx  # an optional package
    from onnx import TensorProto, helper

    config = model.config
    if not has_graph(config):
        raise ValueError("no plain Llama")
    folder.mkdir(parents=True)
    cache = ["texts", config.num_key_value_heads, "room", config.head_dim]
    names = [f"{kind}.{layer}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    inputs: dict[str, list[Any]] = {TOKENS: ["texts", "width"], LENGTHS: ["texts"], LONGEST: [1], PLACES: ["places"]}
    types = {LENGTHS: TensorProto.INT32, LONGEST: TensorProto.INT32}
    value, numbers = helper.make_tensor_value_info, TensorProto.FLOAT
    with (folder / WEIGHTS).open("wb") as file:
        made = _Graph(file)
        made.add_model(model)
    graph = helper.make_graph(
        made.nodes,
        "decoder",
        [value(name, types.get(name, TensorProto.INT64), shape) for name, shape in inputs.items()]
        + [value(_past(name), numbers, cache) for name in names],
        [value(LOGITS, numbers, ["places", config.vocab_size])] + [value(name, numbers, cache) for name in names],
        made.tensors,
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=10), str(folder / GRAPH))
    return folder


class _Graph:
    """Nodes and weights as they come; the bytes of a weight go to a file at once, so that one is held at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def add_model(self, model: Any) -> None:
        """All nodes of a model, from `TOKENS` to `LOGITS`."""
        from onnx import numpy_helper

        inner, width = model.model, model.config.hidden_size
        epsilon = model.config.rms_norm_eps
        # Cosines and sines of every place, as the model computes them, in float32.
        places = torch.arange(model.config.max_position_embeddings)[None]
        cosines, sines = inner.rotary_emb(torch.zeros(1, dtype=torch.float32), places)
        half = cosines.shape[-1] // 2
        turned = [self._weight("cosines", cosines[0, :, :half]), self._weight("sines", sines[0, :, :half])]
        states = self._node("Gather", [self._weight("embedding", inner.embed_tokens.weight), TOKENS], "embedded")
        first = [states, self._weight("norm", inner.layers[0].input_layernorm.weight)]
        normed = self._node("SimplifiedLayerNormalization", first, "normed", axis=-1, epsilon=epsilon)
        norms = [layer.input_layernorm for layer in inner.layers[1:]] + [inner.norm]
        for number, (layer, following) in enumerate(zip(inner.layers, norms, strict=True)):
            at = f"{number}."
            moved = self._attended(at, layer.self_attn, normed, number, turned)
            states, normed = self._added(f"{at}inner", states, moved, layer.post_attention_layernorm, epsilon)
            states, normed = self._added(f"{at}outer", states, self._gated(at, layer.mlp, normed), following, epsilon)
        self.tensors.append(numpy_helper.from_array(np.array([-1, width], np.int64), "flat"))
        flat = self._node("Reshape", [normed, "flat"], "flat_states")
        chosen = self._node("Gather", [flat, PLACES], "chosen")
        self._node("MatMul", [chosen, self._weight("head", model.lm_head.weight.T)], LOGITS)

    def _attended(self, at: str, attention: Any, states: str, number: int, turned: list[str]) -> str:
        config, names = attention.config, [f"key.{number}", f"value.{number}"]
        parts = torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
        asked = self._node("MatMul", [states, self._weight(f"{at}asked", parts.T)], f"{at}asked_states")
        seen = f"{at}seen"
        self._add(
            "GroupQueryAttention",
            [asked, "", "", *map(_past, names), LENGTHS, LONGEST, *turned],
            [seen, *names],
            MICROSOFT,
            num_heads=config.num_attention_heads,
            kv_num_heads=config.num_key_value_heads,
            scale=attention.scaling,
            do_rotary=1,
        )
        return self._node("MatMul", [seen, self._weight(f"{at}out", attention.o_proj.weight.T)], f"{at}moved")

    def _gated(self, at: str, block: Any, states: str) -> str:
        gate = self._node("MatMul", [states, self._weight(f"{at}gate", block.gate_proj.weight.T)], f"{at}gate_states")
        up = self._node("MatMul", [states, self._weight(f"{at}up", block.up_proj.weight.T)], f"{at}up_states")
        open_ = self._node("QuickGelu", [gate], f"{at}open", MICROSOFT, alpha=1.0)  # which is SiLU
        both = self._node("Mul", [open_, up], f"{at}both")
        return self._node("MatMul", [both, self._weight(f"{at}down", block.down_proj.weight.T)], f"{at}gated")

    def _added(self, name: str, states: str, moved: str, norm: Any, epsilon: float) -> tuple[str, str]:
        """The sum of states and what moves them, and the sum normed."""
        weight, total, normed = self._weight(f"{name}.norm", norm.weight), f"{name}.sum", f"{name}.normed"
        inputs = [states, moved, weight]
        self._add("SkipSimplifiedLayerNormalization", inputs, [normed, "", "", total], MICROSOFT, epsilon=epsilon)
        return total, normed

    def _node(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self._add(kind, inputs, [output], domain, **attributes)
        return output

    def _add(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))

    def _weight(self, name: str, weight: torch.Tensor) -> str:
        from onnx import TensorProto

        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        place = {"location": WEIGHTS, "offset": self._file.tell(), "length": weight.numel() * 4}
        self._file.write(weight.float().contiguous().numpy().tobytes())
        external, kind = TensorProto.EXTERNAL, TensorProto.FLOAT
        tensor = TensorProto(name=name, data_type=kind, dims=weight.shape, data_location=external)
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name


def draw(logits: torch.Tensor, config: SamplingConfig, generator: torch.Generator) -> torch.Tensor:
    """A token for each row of logits, drawn as transformers draws with these filters."""
    highest, tokens = logits.topk(min(config.top_k, logits.shape[1]))
    shares = torch.softmax(highest / config.temperature, -1)
    if config.top_p < 1:
        likelier = shares.cumsum(-1) - shares
        shares = shares.where(likelier < config.top_p, 0.0)
    return tokens.gather(1, torch.multinomial(shares, 1, generator=generator))[:, 0]


@dataclass
class _Texts:
    """Texts of one batch that have not ended."""

    numbers: Array  # of the texts within their batch
    tokens: Array  # what the model reads next, int64 [texts, width]; behind a shorter text stands anything
    lengths: Array  # tokens of each text, with those
    places: Array  # of the last token of each text, among `tokens` row by row
    cache: dict[str, Array]  # keys and values of tokens that were read

    def further(self, drawn: torch.Tensor, going: torch.Tensor) -> "_Texts":
        """The texts that go on, each with its new token."""
        kept = going.numpy()
        for name in self.cache if not kept.all() else ():
            self.cache[name] = self.cache[name][kept]  # one by one: the whole cache is most of the memory
        tokens = drawn.numpy()[kept, None]
        return _Texts(self.numbers[kept], tokens, self.lengths[kept] + 1, np.arange(len(tokens)), self.cache)


class OnnxDecoder:
    """A model as a folder of `write_graph`, which samples some batches at once, one on each thread.

    Its products read a copy of the weights, unless they are not `packed`: then they read the file, a fifth slower.
    """

    def __init__(
        self, folder: Path, documents: Documents, threads: int = 1, progress: Told = nobody, packed: bool = True
    ) -> None:
        self._threads, self._progress = threads, progress
        self._prefix, self._end = documents.prefix, documents.end
        self._stops = torch.tensor(sorted({documents.start, documents.end}))
        self._session = _session(folder / GRAPH, packed)
        shapes = {each.name: each.shape for each in self._session.get_outputs()}
        self._vocabulary: int = shapes.pop(LOGITS)[1]
        self._cache: dict[str, list[Any]] = shapes

    def sample(self, prompts: list[str], config: SamplingConfig, batch: int = BATCH) -> list[list[int]]:
        """Sample one continuation of every prompt; documents as `decode.sample` returns them."""
        prefixes = [self._prefix(prompt) for prompt in prompts]
        batches = [prefixes[at : at + batch] for at in range(0, len(prefixes), batch)]
        configs = [config.model_copy(update={"seed": config.seed + number}) for number in range(len(batches))]
        found: list[list[int]] = []
        self._progress(0)
        with ThreadPoolExecutor(self._threads) as threads:
            for prefixes, drawn in zip(batches, threads.map(self.continued, batches, configs), strict=True):
                for prefix, new in zip(prefixes, drawn, strict=True):
                    ended = len(new) < config.max_tokens  # by itself
                    found.append([*prefix, *new, *([self._end] if ended else [])])
                self._progress(len(found))
        return found

    def continued(self, prefixes: list[list[int]], config: SamplingConfig) -> list[list[int]]:
        """What is drawn after each prefix of one batch, without the token that ended it."""
        generator = torch.Generator().manual_seed(config.seed)
        found: list[list[int]] = [[] for _ in prefixes]
        texts = self._begun(prefixes, config.max_tokens)
        for _ in range(config.max_tokens):
            drawn = draw(self._logits(texts), config, generator)
            texts = texts.further(drawn, ~torch.isin(drawn, self._stops))
            for number, (token,) in zip(texts.numbers, texts.tokens.tolist(), strict=True):
                found[number].append(token)
            if not len(texts.numbers):
                break
        return found

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits of the token after each of `ids`, float32 [ids, vocabulary]."""
        text = self._begun([list(ids)], 0)
        text.places = np.arange(len(ids))
        return self._logits(text)

    def _begun(self, prefixes: list[list[int]], more: int) -> _Texts:
        """Texts that were not read yet, with room for `more` tokens behind the longest."""
        lengths = np.array([len(prefix) for prefix in prefixes])
        texts, width = len(prefixes), int(lengths.max())
        tokens = np.zeros((texts, width), np.int64)
        for row, prefix in zip(tokens, prefixes, strict=True):
            row[: len(prefix)] = prefix
        cache = {
            name: np.zeros((texts, heads, width + more, size), np.float32)
            for name, (_, heads, _, size) in self._cache.items()
        }
        return _Texts(np.arange(texts), tokens, lengths, np.arange(texts) * width + lengths - 1, cache)

    def _logits(self, texts: _Texts) -> torch.Tensor:
        """The logits of the tokens after `places`, float32 [places, vocabulary]; keys and values enter the cache."""
        logits = np.empty((len(texts.places), self._vocabulary), np.float32)
        read: dict[str, Array] = {
            TOKENS: texts.tokens,
            LENGTHS: (texts.lengths - 1).astype(np.int32),
            LONGEST: texts.lengths.max(keepdims=True).astype(np.int32),
            PLACES: texts.places,
        }
        binding = self._session.io_binding()
        for name, array in (read | {_past(name): array for name, array in texts.cache.items()}).items():
            binding.bind_input(*_bound(name, array))
        for name, array in ({LOGITS: logits} | texts.cache).items():
            binding.bind_output(*_bound(name, array))
        self._session.run_with_iobinding(binding)
        return torch.from_numpy(logits)


def _bound(name: str, array: Array) -> tuple[Any, ...]:
    """What a binding asks for: the runtime reads and writes the array where it lies."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} does not lie row by row")
    return name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _session(path: Path, packed: bool) -> Any:
    import onnxruntime  # an optional package

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # other batches have the other cores
    options.log_severity_level = 3  # errors alone
    options.add_session_config_entry("session.disable_prepacking", str(int(not packed)))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
