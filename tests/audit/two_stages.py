"""Bugs of a release with two trainings on the same users, under one calibration."""

from mutation import Mutation

_RECIPE = "tests/methods/test_two_stage_recipe.py"
_SOUND = "tests/methods/test_two_stage_soundness.py"
_FIT = f"{_RECIPE}::test_the_noise_is_the_least_with_which_both_stages_fit"

TWO_STAGES = (
    Mutation(
        "stages_of_one_stream",
        "two trainings of one release have no names of their own, and share coins and noise",
        "runs/training.py",
        "stage=context.plan.identity(stage)",
        'stage=""',
        f"{_SOUND}::test_the_stages_share_neither_coins_nor_noise",
    ),
    Mutation(
        "last_stage_alone",
        "the noise of two trainings is calibrated for the second one alone",
        "runs/sampled_steps.py",
        "for rate, count, ratio in lines",
        "for rate, count, ratio in lines[-1:]",
        f"{_FIT}[1.7-rdp]",
    ),
    Mutation(
        "ratio_not_charged",
        "the first of two trainings has a share of the noise that it was calibrated with",
        "runs/sampled_steps.py",
        "GaussianDpEvent(sigma * ratio)",
        "GaussianDpEvent(sigma * max(1.0, ratio) ** 2)",
        f"{_FIT}[1.7-rdp]",
    ),
    Mutation(
        "noise_without_its_ratio",
        "both trainings draw the noise of the second one",
        "runs/sampled_steps.py",
        "_mechanism(each, common * ratio, privacy)",
        "_mechanism(each, common, privacy)",
        f"{_SOUND}::test_the_noise_of_a_stage_has_the_scale_that_its_mechanism_declares[trees]",
    ),
    Mutation(
        "functions_of_the_corpus",
        "the list of function names may lie in the private corpus",
        "methods/two_stage/recipe.py",
        "not apart(self.parses.functions, self.corpus.source)",
        "False",
        f"{_RECIPE}::test_a_list_of_functions_within_the_corpus_is_refused[api.txt]",
    ),
)
