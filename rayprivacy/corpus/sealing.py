"""How the corpus layer seals the exceptions of whatever reads private rows (see `core.sealing`)."""

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.private import Seal

SEAL = Seal(CorpusError, "check that every file of corpus.source is well-formed and readable")
sealed, unwrap = SEAL.around, SEAL.unwrap
