"""How long the stages of earlier runs on this machine took, kept in the user's cache, for better estimates.

Kept are seconds and the public work that the plan declared (`Stage.efforts`), under a digest of the machine, the
method, the stage, the model and `resources`; for work that grows with the corpus, also of `corpus.source`. Never how
many users there were, which no estimate knows. Only whole runs on this machine count: a stage that was resumed found
part of its work done, one that took over what another run made (FOUND) found all of it, and trials of a search must
leave no trace (their number may be secret).
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import read_json, user_cache, write_json
from rayprivacy.runs.directory import FOUND, R, Run, log_entries
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.machine import machine_name
from rayprivacy.runs.measuring import all_stages
from rayprivacy.runs.plan import Plan, Stage
from rayprivacy.runs.recipe import LOCAL, Recipe


@dataclass(frozen=True)
class Pace:
    """A stage of an earlier run.

    Attributes:
        seconds: how long it took.
        efforts: the work that its plan declared.
        users: the plan's public guess at the users of the corpus.
    """

    seconds: float
    efforts: tuple[Effort, ...]
    users: float


def kept_pace(recipe: Recipe, stage: Stage) -> Pace | None:
    """How long the stage took when a recipe like this was last run here; None when it was not."""
    try:
        found = read_json(_path(recipe, stage))
        efforts = tuple(Effort(**each) for each in found["efforts"])
        pace = Pace(float(found["seconds"]), efforts, float(found["users"]))
        return pace if 0 < pace.seconds < float("inf") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never run here, or damaged


def keep_paces(run: Run[R], plan: Plan) -> None:
    """Keep how long the stages of a finished run took, if it ran in one piece, on this machine, and is no trial."""
    recipe, seconds = run.recipe, run.timings()
    starts, found = (_stages_that(run.root, event) for event in ("start", FOUND))
    began_once = starts.count(starts[0]) == 1
    if run.console.quiet or recipe.resources.address != LOCAL or not began_once:
        return
    for stage in all_stages(plan, recipe):
        if stage.efforts and stage.name not in found and seconds.get(stage.name, 0) > 0:
            path, pace = _path(recipe, stage), Pace(seconds[stage.name], stage.efforts, plan.users)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, asdict(pace))
            except OSError:
                return  # a home that cannot be written to is no reason to stop


def _path(recipe: Recipe, stage: Stage) -> Path:
    source = recipe.corpus.source if any(effort.users for effort in stage.efforts or ()) else ""
    shape = [recipe.model.model_dump(mode="json"), recipe.resources.model_dump(mode="json"), source]
    return user_cache() / "pace" / f"{digest_json([machine_name(), recipe.method, stage.name, *shape])[:32]}.json"


def _stages_that(root: Path, event: str) -> list[str]:
    """The stages of which the log notes an event, as often as it does."""
    return [entry["stage"] for entry in log_entries(root) if entry["event"] == event]
