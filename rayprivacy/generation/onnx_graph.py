"""A Llama model as one ONNX graph that reads and writes a cache, with weights in float32 beside it.

    tokens -> embedding -> layers: norm, attention over the cache, norm, gated product -> norm -> places -> logits

A text stands at the beginning of its row of the cache and its next token behind it, so that rows of one batch may have
other lengths: no token before a text has to be hidden. Attention is ONNX Runtime's `GroupQueryAttention`, which writes
the cache in place.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.generation.engines import has_graph

GRAPH = "model.onnx"
WEIGHTS = "weights"
MICROSOFT = "com.microsoft"
TOKENS, LENGTHS, LONGEST, PLACES, LOGITS = "tokens", "lengths", "longest", "places", "logits"
_ALIGNED = 4096


def cache_names(layers: int) -> list[str]:
    """The tensors of the cache, float32 [texts, key heads, room, width of a head]."""
    return [f"{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]


def past(name: str) -> str:
    """A tensor of the cache as an input; by its own name it is an output."""
    return f"past.{name}"


@torch.no_grad()
def write_graph(model: Any, folder: Path) -> Path:
    """Write the graph of a model, `GRAPH`, which refers to `WEIGHTS`.

    Its inputs are `tokens` int64 [texts, width], `lengths` int32 [texts] (the last place of each text), `longest` int32
    [1], `places` int64 [places] (of the tokens, row by row, whose successors are wanted), and the cache.

    Args:
        model: a Llama model of transformers.
        folder: does not exist.

    Returns:
        The folder.

    Raises:
        ValueError: the model is another one, or has more to it.
    """
    import onnx  # an optional package
    from onnx import TensorProto, helper

    config = model.config
    if not has_graph(config):
        raise ValueError("no plain Llama")
    folder.mkdir(parents=True)
    cache = ["texts", config.num_key_value_heads, "room", config.head_dim]
    names = cache_names(config.num_hidden_layers)
    inputs: dict[str, list[Any]] = {TOKENS: ["texts", "width"], LENGTHS: ["texts"], LONGEST: [1], PLACES: ["places"]}
    types = {LENGTHS: TensorProto.INT32, LONGEST: TensorProto.INT32}
    with (folder / WEIGHTS).open("wb") as file:
        made = _Graph(file)
        made.add_model(model)
    graph = helper.make_graph(
        made.nodes,
        "decoder",
        [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.INT64), shape)
            for name, shape in inputs.items()
        ]
        + [helper.make_tensor_value_info(past(name), TensorProto.FLOAT, cache) for name in names],
        [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["places", config.vocab_size])]
        + [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in names],
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
        inner, width = model.model, model.config.hidden_size
        epsilon = model.config.rms_norm_eps
        # Cosines and sines of every place, as the model computes them, in float32.
        places = torch.arange(model.config.max_position_embeddings)[None]
        cosines, sines = inner.rotary_emb(torch.zeros(1, dtype=torch.float32), places)
        half = cosines.shape[-1] // 2
        turned = [self._weight("cosines", cosines[0, :, :half]), self._weight("sines", sines[0, :, :half])]
        states = self._node("Gather", [self._weight("embedding", inner.embed_tokens.weight), TOKENS], "embedded")
        normed = self._node(
            "SimplifiedLayerNormalization",
            [states, self._weight("norm", inner.layers[0].input_layernorm.weight)],
            "normed",
            axis=-1,
            epsilon=epsilon,
        )
        norms = [layer.input_layernorm for layer in inner.layers[1:]] + [inner.norm]
        for number, (layer, following) in enumerate(zip(inner.layers, norms, strict=True)):
            at = f"{number}."
            moved = self._attended(at, layer.self_attn, normed, number, turned)
            states, normed = self._added(f"{at}inner", states, moved, layer.post_attention_layernorm, epsilon)
            states, normed = self._added(f"{at}outer", states, self._gated(at, layer.mlp, normed), following, epsilon)
        flat = self._node("Reshape", [normed, self._constant("flat", np.array([-1, width], np.int64))], "flat_states")
        chosen = self._node("Gather", [flat, PLACES], "chosen")
        self._node("MatMul", [chosen, self._weight("head", model.lm_head.weight.T)], LOGITS)

    def _attended(self, at: str, attention: Any, states: str, number: int, turned: list[str]) -> str:
        config, names = attention.config, [f"key.{number}", f"value.{number}"]
        parts = torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
        asked = self._node("MatMul", [states, self._weight(f"{at}asked", parts.T)], f"{at}asked_states")
        seen = f"{at}seen"
        self._add(
            "GroupQueryAttention",
            [asked, "", "", *map(past, names), LENGTHS, LONGEST, *turned],
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
        """A weight whose bytes lie in the file."""
        from onnx import TensorProto

        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        place = {"location": WEIGHTS, "offset": self._file.tell(), "length": weight.numel() * 4}
        self._file.write(weight.float().contiguous().numpy().tobytes())
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=weight.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name

    def _constant(self, name: str, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.tensors.append(numpy_helper.from_array(value, name))
        return name
