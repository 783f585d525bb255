"""Teachers that are LoRA adapters on the last layers of the trunk, or on all of them."""

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.cut import cut_below
from rayprivacy.models.features import Encoded
from rayprivacy.models.upper import LoraUpper
from rayprivacy.teachers.kinds.deep import DeepKind
from rayprivacy.teachers.settings import TeachersConfig


class LoraKind(DeepKind):
    """LoRA of rank `teachers.width` on the last `teachers.layers` layers (all if absent); tensors named as in PEFT."""

    def __init__(self, backbone: Backbone, config: TeachersConfig, public_rows: Encoded) -> None:
        """See `DeepKind`.

        Raises:
            ConfigError: the base cannot be cut, or has fewer layers than `teachers.layers`.
        """
        cut = cut_below(backbone, config.layers)
        super().__init__(backbone, config, public_rows, LoraUpper(backbone, cut, config.width))
