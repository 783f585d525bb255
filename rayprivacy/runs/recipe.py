"""Recipes: corpus, budget, base model, what is measured, and the release id.

The part of a recipe that decides what is released is digested into the release id. Settings of performance
(`resources`), of post-processing (`generation`, `evaluation`) and of bookkeeping (ledger URL, account, key file) are
left out of it, so changing them re-serves the stored release for nothing.

The author of a recipe says what is public, and that cannot be checked. What can be checked is the slip by which one
place is named twice: a search on "public" text, say, that would read the private corpus for nothing. So each field that
is marked public is compared with every private place (`require_public`). Places are compared as what they are (links,
mounts and other spellings lead to the same file), and nothing in them is read: a private file that was copied elsewhere
passes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from rayprivacy.auditing.settings import AuditConfig
from rayprivacy.core.config import PRIVATE_SIDE, PUBLIC_SIDE, Config, PathKind, path_keys, path_values
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.core.uris import has_credentials, is_uri, shown, sounds_secret
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.tables import ICEBERG
from rayprivacy.evaluation.settings import LEAST_COMPARED, FiguresConfig
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig

OF_A_RUN = ("recipe.yaml", "space.json")  # beside the folder `private` of a run, and of a search
_CORPORA = (PathKind.CORPUS, PathKind.PUBLIC_CORPUS)
_SCHEMES = {"gcs": "gs", "abfss": "abfs"}  # two names of one store
_NAMES = ("chitchat", "dataset")  # of corpora that are no place


def require_public(config: BaseModel, private: Iterable[tuple[str, str]]) -> None:
    """Refuse a config in which something that is declared public is private, or holds a part of what is.

    `private` are keys of the private side, each with the place that it names.
    """
    places = list(private)
    for kind in PUBLIC_SIDE:
        for key, value in path_values(config, kind):
            said = _in_common(value, kind, places)
            if said is not None:
                raise ConfigError(
                    f"{key} is '{shown(value)}', which {said}, and is declared public: name public text, a public model"
                    " or a public list, in a file or folder of its own."
                )


def credentials_in(config: BaseModel) -> str | None:
    """A sentence on the first corpus whose URI has credentials in it, which would stand in files; None without one."""
    for key, source in path_values(config, PathKind.CORPUS, PathKind.PUBLIC_CORPUS):
        if has_credentials(source):
            return f"{key} is a URI with credentials in it: give them by the environment, or by the machine's role"
    return None


def _in_common(value: str, kind: PathKind, private: list[tuple[str, str]]) -> str | None:
    """What a place has in common with the private ones, as a sentence goes on; None where it is apart from them."""
    place = _place(value, kind)
    others = [(key, other, _place(other, PathKind.CORPUS)) for key, other in private]
    for key, written, other in others:
        if how := "is" if value == written else _how(place, other):
            return f"{how} {key}"
    if not isinstance(place, Path):
        return None
    files = list(_files(place))
    for key, _, other in others:
        if isinstance(other, Path) and _share(files, other):
            return f"shares a file with {key}"
    return "holds files of the private folder of a run" if any(map(of_a_run, [place, *files])) else None


def _how(place: PurePath | None, other: PurePath | None) -> str | None:
    if place is None or other is None or type(place) is not type(other):
        return None
    if place == other or _one_is(place, [other]):
        return "is"
    if place.is_relative_to(other) or _one_is(other, place.parents):
        return "lies in"
    return "holds" if other.is_relative_to(place) or _one_is(place, other.parents) else None


def _place(value: str, kind: PathKind) -> PurePath | None:
    """A local place as a `Path` without links, one in a store as a pure path; None for what is a mere name."""
    if not is_uri(value):
        path = os.path.expanduser(value)
        is_name = value in _NAMES or value.startswith(ICEBERG)
        named = not os.path.exists(path) if kind is PathKind.PUBLIC_MODEL else kind in _CORPORA and is_name
        return None if named else Path(os.path.realpath(path))
    uri = urlsplit(value)
    if uri.scheme == "file":
        return Path(os.path.realpath(unquote(uri.path)))
    parts = [part for part in unquote(uri.path).split("/") if part not in ("", ".")]
    return PurePosixPath(_SCHEMES.get(uri.scheme, uri.scheme), uri.hostname or "", *parts)


def _files(place: Path) -> Iterator[Path]:
    """The files of a local place, without links; folders that links lead to are entered once."""
    if place.is_file():
        yield place
    entered = set()
    for folder, folders, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(os.path.realpath(os.path.join(real, name))) for name in names)


def _one_is(place: PurePath, others: Iterable[PurePath]) -> bool:
    """Whether one of these is this local place under another name: a mount, a hard link, letters in another case."""
    return isinstance(place, Path) and any(_same(place, other) for other in others)


def _same(one: PurePath, other: PurePath) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # not there, or not ours to look at
        return False


def _share(files: list[Path], other: Path) -> bool:
    """Whether a file lies in another place, or is there too by a hard link, which only one with two names can be."""
    several = {found for file in files if (found := _number(file)) is not None}
    return any(file.is_relative_to(other) for file in files) or (
        bool(several) and any(_number(file) in several for file in _files(other))
    )


def _number(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else None


def of_a_run(place: Path) -> bool:
    """Whether a place is, or lies in, the private folder of a run or of a search."""
    folders = (place, *place.parents) if "private" in place.parts else ()
    return any(
        folder.name == "private" and any((folder.parent / name).is_file() for name in OF_A_RUN) for folder in folders
    )


LOCAL = "local"  # an address: Ray is started here
_UNATTACKED = {"users": True, "shadows": True}  # canaries change the release, the attacks on it do not
FREE: Mapping[str, Any] = {"generation": True, "evaluation": True, "resources": True, "audit": _UNATTACKED}
_PLACES = ("privacy", "resources")  # blocks whose paths are no part of a release


class MeasureConfig(Config):
    """The `evaluation` block: what is measured on the held-out users. These figures are internal.

    Attributes:
        users: held-out users that are read, at most.
        completions: held-out texts whose first four words the models continue, for Bleu; 0 leaves it out.
        nonprivate_steps: AdamW steps of a model trained without noise, to compare with; 0 leaves it out.
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
        figures: figures of private text that may be published, for a share of the budget; None releases none.
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
    figures: FiguresConfig | None = None
    resources: Resources = Resources()
    audit: AuditConfig | None = None

    @property
    def sharded_corpus(self) -> CorpusConfig:
        """The corpus as it is spread over shards, which is what most methods read."""
        return self.corpus

    @model_validator(mode="after")
    def _corpus_fits(self) -> "Recipe":
        if self.audit and self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', and the attacks of 'audit' ask who took part: remove 'audit'")
        if self.figures and self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', and 'figures' are of users: remove 'figures'")
        if self.audit and self.corpus.holdout == 0:
            raise ValueError("corpus.holdout is 0, and 'audit' compares training users with others: set e.g. 0.1")
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
    def _places_fit(self) -> "Recipe":
        if said := credentials_in(self):
            raise ValueError(said)
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

    def _named_by(self, free: Mapping[str, Any]) -> Json:
        """All that names the release, as JSON values."""
        shape = self.model_dump(mode="json", exclude=dict(free))
        if self.figures is None:  # as in the releases of before there were any
            del shape["figures"]
        shape["privacy"] = self.privacy.model_dump(mode="json", include={"unit", "epsilon", "delta"})
        return shape


def elsewhere(
    data: Mapping[str, Any], kind: type[Recipe], corpus: CorpusConfig, *, ledger: Path, key: Path, account: str
) -> Json:
    """The keys of a recipe that is run on another corpus, with a ledger and a key of its own.

    Nothing of the private side may be left, neither the corpus nor a path to a cache that was made from it: the block
    of the corpus is replaced, private paths are forgotten, and the audit is left out. Shadow models of an audit and
    trials on public text are such runs.
    """
    copy = {name: dict(block) if isinstance(block, Mapping) else block for name, block in data.items()}
    copy.pop("audit", None)
    for path in path_keys(kind, PathKind.PRIVATE):
        _forget(copy, path.split("."))
    copy["corpus"] = corpus.model_dump(mode="json")
    shared = {name: value for name, value in copy.get("privacy", {}).items() if name != "corpus"}  # of other accounts
    copy["privacy"] = shared | {"ledger": f"sqlite:///{ledger}", "key": str(key), "account": account}
    return copy


def _forget(data: Json, path: list[str]) -> None:
    """Take a key out, so that its default holds; blocks on the way are copied first."""
    *blocks, name = path
    for block in blocks:
        inner = data.get(block)
        if not isinstance(inner, Mapping):
            return
        data[block] = dict(inner)
        data = data[block]
    data.pop(name, None)
