"""Teachers that train all layers of the trunk: the dearest kind, for a handful of teachers.

Each keeps a copy of the layers' weights (212 MB for 135 million parameters in bfloat16), and training takes four times
the float32 weights of one.
"""

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded
from rayprivacy.models.upper import FullUpper
from rayprivacy.teachers.kinds.deep import DeepKind
from rayprivacy.teachers.settings import TeachersConfig


class FullKind(DeepKind):
    """All weights of all layers and of the final norm; the embedding and the output head stay the base's."""

    def __init__(self, backbone: Backbone, config: TeachersConfig, public_rows: Encoded) -> None:
        """See `DeepKind`.

        Raises:
            ConfigError: the base cannot be cut.
        """
        super().__init__(backbone, config, public_rows, FullUpper(backbone, cut=0))
