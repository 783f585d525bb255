"""A run directory kept in object storage: worked on in a local folder, mirrored to a URI after every stage."""

from rayprivacy.core.mirror.mirror import Mirror
from rayprivacy.core.mirror.uris import is_uri

__all__ = ["Mirror", "is_uri"]
