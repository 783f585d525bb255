"""Bugs of a release with two trainings on the same users, under one calibration."""

from mutation import Mutation

_RECIPE = "tests/methods/test_two_stage_recipe.py"
_SOUND = "tests/methods/test_two_stage_soundness.py"
_PARSED = "tests/methods/test_two_stage_parser.py"
_FIT = f"{_RECIPE}::test_the_noise_is_the_least_with_which_both_stages_fit"

TWO_STAGES = (
    Mutation(
        "stages_of_one_stream",
        "two trainings of one release have no names of their own, and share coins and noise",
        "blocks/steps.py",
        "stage=context.plan.identity(stage)",
        'stage=""',
        f"{_SOUND}::test_the_stages_share_neither_coins_nor_noise",
    ),
    Mutation(
        "last_stage_alone",
        "the noise of two trainings is calibrated for the second one alone",
        "blocks/steps_plan.py",
        "            for rate, count, ratio in lines\n",
        "            for rate, count, ratio in lines[-1:]\n",
        f"{_FIT}[1.7-rdp]",
    ),
    Mutation(
        "ratio_not_charged",
        "the first of two trainings has a share of the noise that it was calibrated with",
        "blocks/steps_plan.py",
        "GaussianDpEvent(sigma * ratio)",
        "GaussianDpEvent(sigma * max(1.0, ratio) ** 2)",
        f"{_FIT}[1.7-rdp]",
    ),
    Mutation(
        "noise_without_its_ratio",
        "both trainings draw the noise of the second one",
        "blocks/steps_plan.py",
        "_mechanism(each, common * ratio, privacy)",
        "_mechanism(each, common, privacy)",
        f"{_SOUND}::test_the_noise_of_a_stage_has_the_scale_that_its_mechanism_declares[trees]",
    ),
    Mutation(
        "tree_of_another_record",
        "the parser gives every record of a file the tree of its first one",
        "methods/two_stage/parsing.py",
        "trees[place] = parser(utterance)",
        'trees[place] = parser(rows["text"][0].as_py())',
        f"{_PARSED}::test_each_record_has_the_tree_of_its_own_text_whoever_else_is_there",
    ),
    Mutation(
        "parser_outside_the_input",
        "trees of another parser are trained on under the same charges, coins and noise",
        "methods/two_stage/parsing.py",
        "config=_mark(job, key), parts=parts, holdout=holdout, more=more)",
        "config=_mark(job, key))",
        f"{_PARSED}::test_another_parser_makes_another_input_of_the_release",
    ),
    Mutation(
        "record_that_stops_the_run",
        "a private record on which the parser fails stops the run, and is quoted",
        "generation/parsing.py",
        "except Exception:",
        "except ValueError:",
        "tests/generation/test_parsing.py::test_a_record_that_breaks_the_model_shows_nowhere",
    ),
    Mutation(
        "notes_by_their_order",
        "trees that killed tasks noted are given to records by the order of the notes",
        "methods/two_stage/parsing.py",
        "found[place] = tree",
        "found[len(found)] = tree",
        f"{_PARSED}::test_a_killed_task_goes_on_where_it_was",
    ),
    Mutation(
        "notes_of_another_corpus",
        "trees that a killed task noted are given to whoever stands in that place of another corpus",
        "methods/two_stage/parsing.py",
        "return job.notes / _mark(job, key)[:16]",
        "return job.notes / job.public[:16]",
        f"{_PARSED}::test_what_a_killed_task_noted_of_another_corpus_is_not_used",
    ),
)
