"""How the driver seals the exceptions of its own code that reads private rows (see `core.private`)."""

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.private import Seal

SEAL = Seal(RayPrivacyError, "what was charged stays charged once; report it, and run again with --resume")
sealed = SEAL.around
