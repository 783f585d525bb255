"""The kind of teacher that a recipe asks for."""

from pathlib import Path

from safetensors.torch import load_file

from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded
from rayprivacy.teachers.kinds.kind import TeacherKind
from rayprivacy.teachers.kinds.residual import ResidualKind
from rayprivacy.teachers.kinds.square import SquareKind
from rayprivacy.teachers.spec import GroupSpec

HEAD_KINDS = {"square": SquareKind, "residual": ResidualKind}


def kind_for(spec: GroupSpec, backbone: Backbone, rows: Path | None = None) -> TeacherKind:
    """Build the kind of an ensemble, with the public files that its spec names.

    Args:
        spec: the ensemble.
        backbone: the public base; head kinds keep nothing of it but the output head.
        rows: file of the encoded pseudo-sentences that queries point into; head kinds do without it, and the others
            need it to answer, not to train.
    """
    config = spec.teachers
    if config.kind in HEAD_KINDS:
        warm = HeadAdapter(Basis.load(spec.basis), load_file(spec.warm)["matrix"])
        return HEAD_KINDS[config.kind](config, warm, backbone.head)
    # Imported here because they bring the layers of the trunk along, which head kinds never touch.
    from rayprivacy.teachers.kinds.full import FullKind
    from rayprivacy.teachers.kinds.lora import LoraKind

    public = Encoded(**load_file(rows)) if rows else Encoded.empty(config.row_tokens, backbone.width)
    return (LoraKind if config.kind == "lora" else FullKind)(backbone, config, public)
