"""The base class of recipes: corpus, budget, base model, what is measured, and the release id.

The part of a recipe that decides what is released is digested into the release id. Settings of performance
(`resources`), of post-processing (`generation`, `evaluation`) and of bookkeeping (ledger URL, account, key file) are
left out of it, so changing them re-serves the stored release for nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from rayprivacy.auditing.settings import AuditConfig
from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.config import Config
from rayprivacy.core.mirror.uris import has_credentials, sounds_secret
from rayprivacy.core.paths import PRIVATE_SIDE, PathKind, path_values
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.evaluation.settings import LEAST_COMPARED
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.places import require_public

FREE: Mapping[str, Any] = {
    "generation": True,
    "evaluation": True,
    "resources": True,
    "audit": {"users": True, "shadows": True},
}


LOCAL = "local"  # an address: Ray is started here
_OPTIONAL = ("audit", "generation", "match", "parser", "pretrain")
_PLACES = ("privacy", "resources")  # blocks whose paths are no part of a release


class MeasureConfig(Config):
    """The `evaluation` block: what is measured on the held-out users. These figures are internal.

    Attributes:
        users: held-out users that are read, at most.
        completions: held-out texts whose first four words the models continue, for Bleu; 0 leaves it out.
        nonprivate_steps: AdamW steps of the non-private upper bound; 0 leaves it out.
        compare: most training texts, held-out texts and synthetic texts, of each, that are compared after
            the run as `rayprivacy evaluate` does, with the extra `eval`; 0 leaves it out.
    """

    users: int = Field(default=150, ge=1)
    completions: int = Field(default=64, ge=0)
    nonprivate_steps: int = Field(default=100, ge=0)
    compare: int = Field(default=0, ge=0)

    @field_validator("compare")
    @classmethod
    def _enough_or_nothing(cls, compare: int) -> int:
        if 0 < compare < LEAST_COMPARED:
            raise ValueError(f"fewer say nothing: give at least {LEAST_COMPARED}, or 0 to leave the comparison out")
        return compare


class StageNeeds(Config):
    """What a cluster should have while a stage runs.

    Attributes:
        stage: its name in the plan, or `corpus`.
        cpus: CPUs of all its machines together.
        gpus: GPUs of all its machines together.
    """

    stage: str
    cpus: int = Field(default=0, ge=0)
    gpus: int = Field(default=0, ge=0)


class Resources(Config):
    """The `resources` block: nothing in it changes what is released. Methods add keys of their own.

    Attributes:
        address: a Ray cluster to join; `local` starts one here.
        stages: what a cluster that grows and shrinks should have while stages run, each named once; a machine that is
            alone ignores it.
    """

    address: str = LOCAL
    stages: tuple[StageNeeds, ...] = ()

    @field_validator("stages")
    @classmethod
    def _each_once(cls, stages: tuple[StageNeeds, ...]) -> tuple[StageNeeds, ...]:
        names = [needs.stage for needs in stages]
        if len(set(names)) < len(names):
            raise ValueError("a stage is named twice: give each once")
        return stages


class Recipe(Config):
    """A resolved recipe; each method has a class of its own, with more blocks.

    Attributes:
        method: name of the method.
        seed: public; another seed is another release, and another charge.
        generation: how synthetic text is sampled; None for a method that samples none (a sanitiser).
        needs_users: whether the column that names the author must be given.
    """

    needs_users: ClassVar[bool] = True
    method: str
    seed: int = 0
    corpus: CorpusConfig = CorpusConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    model: ModelConfig = ModelConfig()
    generation: SamplingConfig | None = None
    evaluation: MeasureConfig = MeasureConfig()
    resources: Resources = Resources()
    audit: AuditConfig | None = None

    @property
    def sharded_corpus(self) -> CorpusConfig:
        """The corpus as it is spread over shards, which is what most methods read."""
        return self.corpus

    @model_serializer(mode="wrap")
    def _without_unused_blocks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Left out while unset, so that release ids from before there was an audit are found again.
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name not in _OPTIONAL or value is not None}

    @model_validator(mode="after")
    def _can_be_audited(self) -> "Recipe":
        if self.audit and self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', and the attacks of 'audit' ask who took part: remove 'audit'")
        if self.audit and self.corpus.holdout == 0:
            raise ValueError("corpus.holdout is 0, and 'audit' compares training users with others: set e.g. 0.1")
        return self

    @model_validator(mode="after")
    def _knows_users(self) -> "Recipe":
        if self.corpus.user is None and self.needs_users:
            raise ValueError("corpus.user is null, and the method protects users or their records: name the column")
        return self

    @model_validator(mode="after")
    def _no_password(self) -> "Recipe":
        # Checked on the whole recipe, whose input is never quoted; a run directory keeps the recipe as it is.
        try:
            url = make_url(self.privacy.ledger)
        except ArgumentError:
            raise ValueError("privacy.ledger is no SQLAlchemy URL: write e.g. sqlite:///ledger.db") from None
        if url.password or any(map(sounds_secret, url.query)):
            raise ValueError(
                "privacy.ledger holds a password: put it into a password file (PGPASSFILE, or ?passfile=... in the URL)"
            )
        return self

    @model_validator(mode="after")
    def _no_credentials(self) -> "Recipe":
        for key, source in path_values(self, PathKind.CORPUS, PathKind.PUBLIC_CORPUS):
            if has_credentials(source):
                raise ValueError(
                    f"{key} is a URI with credentials in it: give them by the environment, or by the machine's role"
                )
        return self

    @model_validator(mode="after")
    def _public_is_not_private(self) -> "Recipe":
        require_public(self, path_values(self, *PRIVATE_SIDE))
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: equal recipes are the same release."""
        return self._named(FREE)

    def on_its_base(self, root: Path) -> Self:
        """The recipe of a finished run in `root`, with the public model that the run stood on as its base model.

        For what looks at the run afterwards, such as models that are trained like its own.
        """
        return self

    def absolute(self) -> Self:
        """The same recipe for a process with another working directory: the same release, absolute private paths.

        Paths that are part of the release (corpus, prompts) stay as they are.
        """
        from rayprivacy.ledger.service import Address  # imports Ray

        data = self.model_dump(mode="json")
        for key, value in path_values(self, PathKind.PRIVATE):
            block, _, name = key.partition(".")
            if block in _PLACES:
                data[block][name] = str(Path(value).absolute())
        data["privacy"]["ledger"] = Address.of(self.privacy.ledger).url
        return type(self).parse(data)

    def _named(self, free: Mapping[str, Any]) -> str:
        return f"{self.method}-{digest_json(self._named_by(free))[:16]}"

    def _named_by(self, free: Mapping[str, Any]) -> dict[str, Any]:
        """All that names the release, as JSON values."""
        shape = self.model_dump(mode="json", exclude=dict(free))
        shape["privacy"] = self.privacy.model_dump(mode="json", include={"unit", "epsilon", "delta"})
        return shape
