"""The block `knowledge`: bad input gets one sentence that names the field, the value and the remedy."""

import pytest
from toy_knowledge import ATTRIBUTES, small

from rayprivacy.core.errors import ConfigError


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ({"attributes": []}, "'attributes' is"),
        (
            {"attributes": [{**ATTRIBUTES[0], "values": []}]},
            "is a category without values: list them, or change its kind",
        ),
        ({"attributes": [{**ATTRIBUTES[2], "values": ["a"]}]}, "is a number with values: make it a category"),
        ({"attributes": [{**ATTRIBUTES[0], "unit": ["kg"]}]}, "is a category with a unit: only a number has one"),
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
