"""The bugs of pretraining: noise is drawn under a name that holds the model it is added to."""

from mutation import Mutation

PRETRAINING = (
    Mutation(
        "noise_of_the_named_base",
        "models that were pretrained on different text share one release, hence coins and noise",
        "blocks/steps.py",
        "        context.backbone.digest,",
        "        context.base.digest,",
        "tests/runs/test_pretrained_release.py::test_other_public_text_is_another_input_of_the_release",
    ),
)
