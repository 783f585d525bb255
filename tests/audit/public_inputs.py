"""Bugs by which private text is taken for public."""

from mutation import Mutation

_CONTRACT = "tests/contract/test_public_inputs.py"
_PLACES = "tests/runs/test_public_places.py"

PUBLIC_INPUTS = (
    Mutation(
        "corpus_for_public_text",
        "what a recipe declares public may be its private corpus",
        "runs/recipe.py",
        "path_values(self, *PRIVATE_SIDE)",
        "path_values(self, PathKind.PRIVATE)",
        f"{_CONTRACT}::test_a_public_place_of_a_recipe_that_is_private_is_refused[seqpate-prompts]",
    ),
    Mutation(
        "search_on_the_corpus",
        "a search that is free, because it is said to run on public text, runs on the private corpus",
        "tuning/trial_recipes.py",
        "        require_public(space, private)\n",
        "",
        f"{_CONTRACT}::test_a_public_place_of_a_space_that_is_private_is_refused[public.source]",
    ),
    Mutation(
        "trial_on_the_corpus",
        "a trial of a public search may read the private corpus under another key",
        "tuning/trial_recipes.py",
        "            require_public(recipe, self.private)\n",
        "",
        f"{_CONTRACT}::test_a_trial_of_a_search_takes_no_private_text_for_public[public-search]",
    ),
    Mutation(
        "place_that_nobody_marked",
        "a key that names a public file is compared with nothing, because nobody marked it",
        "methods/seqpate/recipe.py",
        "prompts: Annotated[str | None, PathKind.PUBLIC] = None",
        "prompts: str | None = None",
        f"{_CONTRACT}::test_every_key_that_takes_free_text_is_a_marked_place_or_known_to_be_none[seqpate]",
    ),
    Mutation(
        "part_of_the_corpus_for_public_text",
        "a part of the private corpus is taken for public text",
        "runs/places.py",
        "place.is_relative_to(other) or _one_is(other, place.parents)",
        "False",
        f"{_PLACES}::test_what_lies_in_the_corpus_or_holds_it_is_no_public_place",
    ),
    Mutation(
        "link_to_the_corpus",
        "a public folder with a link to the private corpus is taken for public text",
        "runs/places.py",
        "any(file.is_relative_to(other) for file in files)",
        "False",
        f"{_PLACES}::test_a_public_folder_with_a_link_to_the_corpus_shares_a_file_with_it[symlink]",
    ),
    Mutation(
        "private_folder_for_public_text",
        "what a run keeps in its private folder is taken for public text by another run",
        "runs/places.py",
        'folder.name == "private" and',
        "False and",
        f"{_PLACES}::test_the_private_folder_of_any_run_is_private[recipe.yaml]",
    ),
)
