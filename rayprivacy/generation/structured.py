"""Texts that follow a public grammar: sampled freely, taken if they follow it, and sampled under its masks if not.

    prompts -> the model, freely -> follows the grammar? -- yes -> kept: exactly the model's own distribution
                  ^                      | no, a few times         given that the grammar is followed
                  +----------------------+
                                         | still no
                                         v
               the model, under masks that leave the tokens with which the grammar can go on -> complete? -> kept

Masks decide token by token, and so change the distribution; free draws do not. But a long text follows the grammar
less often than a short one, so that kept free draws are shorter than what the model writes: without free draws, all
texts are sampled under masks. Both kinds are counted. A text that reaches its bound of tokens before it is complete is
drawn again, a few times, and then left out.

All of this looks at the released model and at public rules: it is post-processing. How a grammar is checked, and how
masks are made, is in `grammars`. Without a grammar every text is kept, and those that are parse trees, or JSON, are
counted as accepted.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.corpus.grammar import Grammar
from rayprivacy.corpus.structures import names
from rayprivacy.generation.grammars import Matcher, matcher_of
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Documents

MASKED_DRAWS = 4
INCOMPLETE = "incomplete"
FREE, ACCEPTED, MASKED, LEFT_OUT = "free_draws", "free_draws_accepted", "masked_draws", "left_out"
Continue = Callable[[list[str], SamplingConfig], list[str]]


@dataclass(frozen=True)
class Structure:
    """What is asked of texts; public, and goes to the workers.

    Attributes:
        grammar: the rules; None keeps every text.
        free_draws: how often a text is sampled freely.
        constrained: whether texts that do not follow the grammar are drawn under masks, or kept as they are.
    """

    grammar: Grammar | None
    free_draws: int = 1
    constrained: bool = True


@dataclass
class StructuredWriter:
    """Writes texts of a structure.

    Attributes:
        structure: what is asked of them.
        documents: of the model.
        vocabulary: how many tokens the model scores.
        freely: what comes after each prompt, by any engine.
        under_masks: the same, given a maker of masks; loads what it needs when it is first called.
        counts: draws so far, by kind.
    """

    structure: Structure
    documents: Documents
    vocabulary: int
    freely: Continue
    under_masks: Callable[[Matcher], Continue]
    counts: Counter[str] = field(default_factory=Counter)

    @cached_property
    def _matcher(self) -> Matcher | None:
        grammar = self.structure.grammar
        return matcher_of(grammar, self.documents, self.vocabulary) if grammar else None

    def __call__(self, prompts: list[str], config: SamplingConfig) -> list[tuple[str, str | None]]:
        """A text for each prompt, and why it is left out, or None."""
        texts = [""] * len(prompts)
        open_places = list(range(len(prompts)))
        for draw in range(self.structure.free_draws):
            open_places = self._drawn(self.freely, prompts, texts, open_places, _again(config, draw), (FREE, ACCEPTED))
        if not self.structure.constrained:
            return [(text, None) for text in texts]
        if open_places and self._matcher is not None:
            masked = self.under_masks(self._matcher)
            for draw in range(MASKED_DRAWS):
                again = _again(config, self.structure.free_draws + draw)
                open_places = self._drawn(masked, prompts, texts, open_places, again, (MASKED, ""))
        self.counts[LEFT_OUT] += len(open_places)
        return [(text, INCOMPLETE if place in open_places else None) for place, text in enumerate(texts)]

    def _drawn(
        self,
        draw: Continue,
        prompts: list[str],
        texts: list[str],
        places: list[int],
        config: SamplingConfig,
        kinds: tuple[str, str],
    ) -> list[int]:
        """Draw the texts of some places; the places whose text does not follow the grammar."""
        if not places:
            return []
        for place, text in zip(places, draw([prompts[place] for place in places], config), strict=True):
            texts[place] = text
        failed = [place for place in places if not self._accepts(texts[place])]
        drawn, accepted = kinds
        self.counts[drawn] += len(places)
        if accepted:
            self.counts[accepted] += len(places) - len(failed)
        return failed

    def _accepts(self, text: str) -> bool:
        return self._matcher.accepts(text) if self._matcher else names(text) is not None


def _again(config: SamplingConfig, draw: int) -> SamplingConfig:
    """The settings of one more draw, with a seed of its own; the first draw has that of its block."""
    seed = int(digest_bytes(f"draw {config.seed} {draw}".encode())[:8], 16) if draw else config.seed
    return config.model_copy(update={"seed": seed})
