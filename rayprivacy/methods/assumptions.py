"""What a claim rests on and the software cannot check, by method and privacy unit. Certificates print it."""

from rayprivacy.core.units import PrivacyUnit

_WHO = {
    PrivacyUnit.USER: (
        "Every user's text carries one and the same user id in the corpus; who uses two ids is two users.",
    ),
    PrivacyUnit.RECORD: (
        "What must be hidden is in one record: one user's text with its labels; repeats with another user, wording or "
        "labels are other records, and a user with many records is protected as a group only.",
    ),
    PrivacyUnit.PHRASE: (
        "What must be hidden is a line of the phrases file, spelled as there up to letter case and whatever stands "
        "between its words; users, records, the text around a phrase and the list itself are not protected.",
        "All releases of the account used the same list of phrases; a changed list is another account.",
        "max_shards_per_phrase is public and was not chosen by counting phrases in the corpus.",
    ),
}
_KEYED = {
    PrivacyUnit.USER: "shard a user falls into",
    PrivacyUnit.RECORD: "shard a record falls into",
    PrivacyUnit.PHRASE: "shards a phrase may stay in",
}


_NOISE = {
    "gaussian": "The discrete Gaussian on a grid of 2^-20 is accounted as the continuous one.",
    "laplace": "The discrete Laplace on a grid of 2^-20 is accounted as the continuous one, except by pure epsilon.",
}


_PUBLIC = "Prompts, base model and all numbers of the recipe are public and were not chosen by looking at the corpus."


def generator_assumptions(unit: PrivacyUnit, has_histogram: bool) -> tuple[str, ...]:
    """The assumptions behind a claim of the generator about one unit."""
    histogram = (_NOISE["gaussian"],) if has_histogram else ()
    return (
        *_WHO[unit],
        "Sampling rate, batch size, steps, clipping norm and the lists of label values are public, and so is the base "
        "model; none was chosen by looking at the corpus.",
        "The model and, where labels are used, their noisy shares left the private side, and nothing else; metrics "
        "marked 'releasable: false' are not part of the claim.",
        f"Who takes part in a step is decided by a keyed coin for each {unit}, alone (Poisson sampling).",
        "The noise of the steps is a stream of AES-256 under the key file: the key file stays secret for good, because "
        "whoever has it can take the noise off the model again.",
        "The noise of the steps is Gaussian in floating point, accounted as exact.",
        "Clipped gradients are added up in floating point. One more user may change how the sum of all others is "
        "rounded, by about 1e-16 of it with LoRA and without DeepSpeed, and by about 1e-7 of it otherwise; that is "
        "neglected.",
        *histogram,
        "Running time and memory are not protected.",
    )


def assumptions(unit: PrivacyUnit, noise: str = "gaussian") -> tuple[str, ...]:
    """The assumptions behind a claim of SeqPATE about one unit, with this kind of noise."""
    return (
        *_WHO[unit],
        _PUBLIC,
        "Only the released votes left the private side; metrics marked 'releasable: false' are not part of the claim.",
        f"The key file stayed secret; it decides which {_KEYED[unit]}.",
        _NOISE[noise],
        "Running time and memory are not protected.",
    )
