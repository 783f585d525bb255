"""The block `knowledge`: bad input gets one sentence that names the field, the value and the remedy."""

import pytest
from toy_knowledge import ATTRIBUTES, small

from rayprivacy.core.errors import ConfigError
from rayprivacy.knowledge.settings import MOST_KNOWN


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ({"attributes": []}, "'attributes' is"),
        (
            {"attributes": [{**ATTRIBUTES[0], "values": []}]},
            "is a category without values: list them, or change its kind",
        ),
        ({"attributes": [{**ATTRIBUTES[2], "values": ["a"]}]}, "is a number with values: make it a category"),
        ({"attributes": [{**ATTRIBUTES[0], "unit": ["kg"]}]}, "is a category with 'unit': only a number has it"),
        ({"attributes": [{**ATTRIBUTES[3], "between": [1, 9]}]}, "is a place with 'between': only a number has it"),
        ({"attributes": [{**ATTRIBUTES[2], "between": [9, 1]}]}, "is between (9, 1): write the lesser number first"),
        ({"attributes": [{**ATTRIBUTES[2], "between": [-1, 9]}]}, "'attributes.0.between.0' is -1"),
        ({"attributes": [{**ATTRIBUTES[2], "between": [1, 10**13]}]}, "'attributes.0.between.1' is 10000000000000"),
        ({"attributes": [{**ATTRIBUTES[2], "between": [1]}]}, "'attributes.0.between.1'"),
        ({"attributes": [{**ATTRIBUTES[0], "questions": ["What type?"]}]}, "does not say {name}: write it where"),
        ({"attributes": [{**ATTRIBUTES[0], "sentences": ["{name} is."]}]}, "does not say {answer}: write it where"),
        ({"attributes": [{**ATTRIBUTES[0], "sentences": []}]}, "sentences"),
        (
            {"attributes": [ATTRIBUTES[0], ATTRIBUTES[0]]},
            "two attributes are called 'type': give each a name of its own",
        ),
        ({"attributes": [{**ATTRIBUTES[0], "kind": "colour"}]}, "'attributes.0.kind' is 'colour'"),
        ({"names": {"most": 0}}, "'names.most' is 0"),
        ({"reader": {"score": 2}}, "'reader.score' is 2"),
        ({"answers": {"moist": 4}}, "did you mean 'answers.most'?"),
        ({"rounds": 3}, "'rounds' is 3"),
        ({"names_share": 1.0}, "'names_share' is 1.0"),
    ],
)
def test_bad_input_is_told_in_one_sentence(blocks, said):
    with pytest.raises(ConfigError) as refused:
        small(**blocks)
    message = str(refused.value)
    assert said in message
    assert message.endswith(".")
    assert "\n" not in message


def test_known_answers_are_those_of_public_lists_and_ranges_and_the_names_themselves():
    attributes = [{**ATTRIBUTES[2], "between": [0, 3]}, {**ATTRIBUTES[3], "values": ["The Bay", "bay", "Hill"]}]
    config = small(attributes=[*ATTRIBUTES[:2], *attributes, *ATTRIBUTES[4:]])
    assert {name: [*each] for name, each in config.known(["mirak", "zorvel"]).items()} == {
        "type": ["fire", "water"],
        "diet": ["berries", "tree bark"],
        "weight": [0, 1, 2, 3],
        "home": ["bay", "hill"],
        "rival": ["mirak", "zorvel"],
    }
    assert small().known([]) == {}


def test_an_attribute_whose_known_answers_would_be_too_many_counts_as_unknown():
    """By the recipe and the number of names alone; those behind it may still be known."""
    wide = {**ATTRIBUTES[2], "between": [1, 10**12]}
    config = small(attributes=[wide, ATTRIBUTES[5], ATTRIBUTES[0]])
    known_of = {2: ["rival", "type"], 1000: ["rival"], 1001: ["type"], 500_000: ["type"], 500_001: []}
    for names, known in known_of.items():
        assert [*config.known([str(name) for name in range(names)])] == known, names
    assert MOST_KNOWN == 1000 * 1000
