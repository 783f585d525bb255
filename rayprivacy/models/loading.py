"""How a public model is read from its folder or hub: without code of its own, whole, finite, and as a language model.

A base is public, and so is whatever transformers says of it: unlike errors on private text, these are told with their
reason. What is looked at here takes a fraction of a second, and is looked at in every process that loads a base.
`blocks.trial` tries the rest of the road, once, before an account is opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoTokenizer

from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.models.quiet import no_advice, no_progress_bars
from rayprivacy.models.sources import require_positions

_SEED = 0  # public, like the tokens
_TOKENS = 8  # of the row that is tried
_LONGEST = 200  # characters of a reason


@contextmanager
def telling(base: str, failed: str = "it could not be loaded") -> Iterator[None]:
    """Tell in one sentence what goes wrong with a public base inside the block, and why."""
    try:
        yield
    except RayPrivacyError:
        raise
    except Exception as error:  # noqa: BLE001 - what reads tokenizers and weights raises many kinds, which are public
        if "trust_remote_code" in str(error):
            why = "it brings code of its own, which is never run: name a model whose class is in transformers"
        else:
            why = f"{failed} ({reason(error)})"
        raise ConfigError(f"model.base is {base!r}: {why}.") from None


def reason(error: Exception) -> str:
    """What a library says of a public model, in one line."""
    first = next(iter(str(error).strip().splitlines()), "").split(". ")[0].rstrip(".: ")
    said = first if len(first) <= _LONGEST else f"{first[:_LONGEST]} ..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def load_tokenizer(source: Any) -> Any:
    """The tokenizer of a folder or hub id."""
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def load_weights(base: str, loader: Any, source: str, *, new: tuple[str, ...] = (), **options: Any) -> Any:
    """The model in eval mode, frozen; no weights were made up but those of the parts `new`."""
    with no_progress_bars(), no_advice():
        model, found = loader.from_pretrained(source, trust_remote_code=False, output_loading_info=True, **options)
    missing = sorted(name for name in found["missing_keys"] if name.partition(".")[0] not in new)
    if missing:
        raise ConfigError(
            f"model.base is {base!r}: its weights are not whole, {_some(missing)} {_verb(missing)} missing: fetch it"
            " again, or name a model that was saved as a language model."
        )
    return model.eval().requires_grad_(False)


def check_model(base: str, model: Any) -> None:
    """Refuse a model with an adapter inside, or with weights that are no numbers."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # 140 MB, which processes that write texts need not hold

    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise ConfigError(
            f"model.base is {base!r}: it has an adapter inside, which would not be saved with what is trained: merge it"
            " (merge_and_unload of PEFT), save the result, and name that."
        )
    endless = [name for name, weight in model.named_parameters() if not _is_finite(weight)]
    if endless:
        raise ConfigError(
            f"model.base is {base!r}: {_some(endless)} {_verb(endless)} no finite numbers: fetch it again, or name"
            " another."
        )


def _is_finite(weight: torch.Tensor) -> bool:
    if weight.numel() == 0 or not weight.is_floating_point():
        return True
    least, most = torch.aminmax(weight.detach())  # either is NaN where one number is
    return bool(torch.isfinite(least) and torch.isfinite(most))


def _some(names: list[str]) -> str:
    return f"{names[0]!r} and {len(names) - 1} more" if len(names) > 1 else repr(names[0])


def _verb(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"


def check_tokenizer(base: str, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer without an end token, or with tokens that the model has no embedding for."""
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"model.base is {base!r}: its tokenizer has no end-of-text token.")
    rows, highest = len(model.get_input_embeddings().weight), max(tokenizer.get_vocab().values())
    if highest >= rows:
        raise ConfigError(
            f"model.base is {base!r}: its tokenizer has token {highest}, and the model knows {rows} tokens: give it its"
            " own tokenizer, or resize its embeddings and save it."
        )


def check_language_model(base: str, model: Any) -> None:
    """Refuse what reads more than text, and a model that sees later tokens: it must predict each from those before."""
    if model.config.get_text_config() is not model.config:
        raise ConfigError(
            f"model.base is {base!r}, of type {model.config.model_type!r}, which reads more than text: name a model of"
            " text alone."
        )
    with telling(base, "it could not read public tokens"):
        sees = _sees_later_tokens(model)
    if sees:
        raise ConfigError(
            f"model.base is {base!r}, of type {model.config.model_type!r}, which sees later tokens, so that it cannot"
            " write text: name a causal language model."
        )


def public_ids(model: Any, tokens: int = _TOKENS) -> torch.Tensor:
    """Random token ids [1, tokens], always the same."""
    dice = torch.Generator().manual_seed(_SEED)
    return torch.randint(len(model.get_input_embeddings().weight), (1, tokens), generator=dice).to(model.device)


@torch.enable_grad()
def _sees_later_tokens(model: Any) -> bool:
    """Whether a change of the last token would move the logits before it, were it ever so small.

    Their gradient says so exactly, in every number format; logits that are compared may differ by rounding, or be
    rounded to the same.
    """
    logits, embedded = differentiable(model, model, input_ids=public_ids(model))
    (gradient,) = torch.autograd.grad(projected(logits.logits[:, :-1]), embedded)
    return bool(gradient[:, -1].any())


def differentiable(model: Any, part: Any, **inputs: Any) -> tuple[Any, torch.Tensor]:
    """What a part of a model makes of inputs, and their embeddings, by which it can be differentiated."""
    seen: list[torch.Tensor] = []

    def watch(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1].clone()  # which the model may change in place

    handle = model.get_input_embeddings().register_forward_hook(watch)
    try:
        return part(**inputs), seen[0]
    finally:
        handle.remove()


def projected(values: torch.Tensor) -> torch.Tensor:
    """The sum of values times random numbers, always the same: a plain sum may be constant."""
    dice = torch.Generator().manual_seed(_SEED)
    return (values.float() * torch.randn(values.shape, generator=dice).to(values.device)).sum()


def check_positions(model: Any, tokens: int) -> None:
    """Refuse texts of more tokens than the model has positions for, as far as its configuration says."""
    require_positions(getattr(getattr(model, "config", None), "max_position_embeddings", None), tokens)
