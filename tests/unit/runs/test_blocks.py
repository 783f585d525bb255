"""A plan of blocks: what a block charges and rests on is in the plan because the block is, and noise fits beside it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.runs.assumptions import CLUSTER, OF_UNIT, TIMING, Where, at
from rayprivacy.runs.plan import Block, Plan, Stage

RECIPE = parse_recipe({"method": "toy"})


class Vote(Block):
    def stages(self, recipe):
        return (Stage("vote", "private text", charges=(GaussianDpEvent(7.0),)),)

    def assumptions(self, recipe):
        return (*at(Where.NOISE, "noise is noise"), *at(Where.PUBLIC, "topics are public"))

    def check(self, recipe):
        raise ConfigError("the topics cannot be read.")


@dataclass(frozen=True)
class Steps(Block):
    calibrated: ClassVar[bool] = True
    beside: tuple[DpEvent, ...] = ()

    def fitted(self, recipe, beside):
        return Steps(tuple(beside))

    def stages(self, recipe):
        return (Stage("steps", "private text", charges=(GaussianDpEvent(3.0),), mechanism=self.beside),)

    def assumptions(self, recipe):
        return (*at(Where.STEPS, "coins are secret"), *at(Where.NOISE, "noise is noise"))

    def facts(self, recipe):
        return {"protection": Protection(PrivacyUnit.USER), "noise": "some", "shards": 3}


def test_a_plan_is_what_its_blocks_are():
    plan = Plan.of(RECIPE, Steps(), Vote(), says=at(Where.RELEASED, "a model"), shards=2)
    assert [stage.name for stage in plan.stages] == ["steps", "vote"]
    assert plan.charges == [GaussianDpEvent(3.0), GaussianDpEvent(7.0)]
    assert plan.stage("steps").mechanism == (GaussianDpEvent(7.0),), "what is charged beside, wherever it stands"
    own = ("topics are public", "a model", "coins are secret", "noise is noise")
    assert plan.assumptions == (*OF_UNIT[PrivacyUnit.USER], *own, TIMING, CLUSTER)
    assert (plan.noise, plan.shards) == ("some", 2)
    with pytest.raises(ConfigError, match="the topics cannot be read"):
        plan.check(RECIPE)


def test_two_blocks_cannot_both_take_what_is_left():
    with pytest.raises(ValueError, match="two blocks are calibrated"):
        Plan.of(RECIPE, Steps(), Steps())
