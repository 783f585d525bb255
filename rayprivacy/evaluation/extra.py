"""The optional packages of an evaluation, asked for before any work: a run that ends with one has paid by then."""

from importlib.util import find_spec

from rayprivacy.core.errors import ConfigError

PACKAGES = ("sklearn", "sacrebleu")


def require_extra(what: str) -> None:
    """Require the packages of the extra `eval`.

    Args:
        what: what needs them, as errors name it.

    Raises:
        ConfigError: one is not installed.
    """
    for name in PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"{what} needs {name}: pip install 'rayprivacy[eval]'.")
