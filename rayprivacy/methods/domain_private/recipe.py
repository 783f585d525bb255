"""The recipe of domain-private training: the policy, the redaction schedule, and the steps that are charged."""

from typing import Literal

from pydantic import Field, model_validator

from rayprivacy.blocks import pretrain_plan, steps_plan, writing_plan
from rayprivacy.core.config import Config
from rayprivacy.core.names import Label
from rayprivacy.core.units import Budget, PrivacyUnit
from rayprivacy.corpus.settings import WHOLE, CorpusConfig
from rayprivacy.dpsgd.settings import DpSgdConfig
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.domain_private.schedules import Name, draw
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.policies.settings import PolicyConfig
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method


class SelectivePrivacyConfig(steps_plan.SampledPrivacyConfig):
    """The `privacy` block: users, on a selective account, which shares its corpus label with the plain accounts.

    Attributes:
        corpus: label of the corpus; every central account with this label records the run as non-private.
    """

    unit: Literal[PrivacyUnit.USER] = PrivacyUnit.USER
    corpus: str = Field(default="private text", min_length=1)


class DomainsConfig(Config):
    """The `codes` block: the public values of corpus.labels, such as the domains. All codes are written equally often.

    Attributes:
        values: for each of corpus.labels, its public values; `other` is always one more.
    """

    values: dict[str, tuple[Label, ...]] = Field(default={})


class CentralConfig(Config):
    """The `redacted.central` block: a plain account that pays for all steps, and what it may spend on them.

    Attributes:
        account: its name; it is opened with this budget, and with the ledger, corpus and composition of `privacy`.
        epsilon: cap of this account.
        delta: delta of this account; None takes that of `privacy`.
    """

    account: str = Field(min_length=1)
    epsilon: float = Field(gt=0)
    delta: float | None = Field(default=None, gt=0, lt=1)


class RedactedConfig(Config):
    """The `redacted` block: which steps read redacted text (see `schedules`), and whether these are noisy too.

    Attributes:
        schedule: of the chance that a step does; `step` is JFT, and `none` makes every step noisy.
        central: the plain account that pays for all steps, for users rather than for what the policy finds; redacted
            steps then take light noise. None leaves noise out of them, and the run is non-private for plain accounts.
        noise_multiplier: of redacted steps, with `central`; None takes the least that fits the budget of `central`.
    """

    schedule: Name = "expconcave"
    central: CentralConfig | None = None
    noise_multiplier: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _noise_is_paid_for(self) -> "RedactedConfig":
        if self.noise_multiplier is not None and self.central is None:
            raise ValueError(
                f"redacted.noise_multiplier is {self.noise_multiplier:g} without redacted.central: name the plain"
                " account that pays for it, e.g. central: {account: dialogs, epsilon: 100}"
            )
        return self


class DomainPrivateRecipe(pretrain_plan.PretrainedRecipe):
    """A resolved recipe of domain-private training (Domain Private Transformers, 2023)."""

    method: Literal["domain_private"] = "domain_private"
    privacy: SelectivePrivacyConfig = SelectivePrivacyConfig()
    adapter: AdapterConfig = AdapterConfig()
    codes: DomainsConfig = DomainsConfig()
    policy: PolicyConfig = PolicyConfig()
    redacted: RedactedConfig = RedactedConfig()
    training: DpSgdConfig = DpSgdConfig()
    generation: writing_plan.CodedWritingConfig = writing_plan.CodedWritingConfig()
    resources: steps_plan.SampledResources = steps_plan.SampledResources()

    @property
    def sharded_corpus(self) -> CorpusConfig:
        """Whole texts: they are cut when their policy has seen them (see `reading`)."""
        return self.corpus.model_copy(update={"max_chars": WHOLE})

    @model_validator(mode="after")
    def _can_run(self) -> "DomainPrivateRecipe":
        steps_plan.check_sampled(self)
        self.control_codes  # noqa: B018 - refuses lists that do not fit the labels
        if self.training.bands > 1:
            raise ValueError(
                f"training.bands is {self.training.bands}, and noise that is shared between steps cannot be left out of"
                " some: set it to 1"
            )
        central = self.redacted.central
        if central is not None and central.account == self.privacy.account:
            raise ValueError(
                f"redacted.central.account is '{central.account}', the selective account of the run: name another one"
            )
        if central is not None and not any(self.schedule):
            raise ValueError(
                f"redacted.central is set and redacted.schedule '{self.redacted.schedule}' has no redacted step:"
                " all steps are noisy already, so leave it out"
            )
        if all(self.schedule):
            raise ValueError(
                f"redacted.schedule '{self.redacted.schedule}' with seed {self.seed} has no noisy"
                f" step among {self.training.steps}, so that no full text would be read: give more steps, or another"
                " schedule"
            )
        return self

    @model_validator(mode="after")
    def _policy_fits_the_corpus(self) -> "DomainPrivateRecipe":
        join, column = self.corpus.join, self.policy.column
        if column and not (join and column in join.words):
            raise ValueError(f"policy.column is '{column}', which is none of corpus.join.words: add it there")
        return self

    @property
    def control_codes(self) -> Codes:
        """The control codes of the labels."""
        return Codes(CodesConfig(values=self.codes.values, histogram=False), self.corpus.labels)

    @property
    def kept(self) -> tuple[str, ...]:
        """Words that are never redacted: those that stand in front of each turn."""
        return tuple(self.corpus.join.prefix.split()) if self.corpus.join else ()

    @property
    def schedule(self) -> tuple[bool, ...]:
        """For each step whether it reads redacted text."""
        return draw(self.redacted.schedule, self.training.steps, self.seed)

    @property
    def central_budget(self) -> Budget | None:
        """What the central account may spend on all steps; None where there is none."""
        central = self.redacted.central
        return None if central is None else Budget(central.epsilon, central.delta or self.privacy.delta)


CARD = Card(
    citation="domain-private training (Domain Private Transformers for Multi-Domain Dialog Systems, 2023)",
    sentence="a language model was fine-tuned on copies of private text that a public policy had redacted, with light"
    " noise or none, and on the full text in noisy steps of DP-SGD. What the policy does not find is not protected.",
    private=(("corpus", "the raw text"), ("users", "one id each"), ("copies", "redacted"), ("gradients", "clipped")),
    released=(("model", "noisy steps"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE | PRETRAINED | {"domain_private": "Domain-private model (this run)"},
    ours="domain_private",
)
METHOD = Method(
    recipe=DomainPrivateRecipe,
    card=CARD,
    plan="rayprivacy.methods.domain_private.plan:plan_run",
    run="rayprivacy.methods.domain_private.method:run",
    reading="rayprivacy.methods.domain_private.method:reading_of",
    trial="rayprivacy.blocks.trial:try_language_model",
)
