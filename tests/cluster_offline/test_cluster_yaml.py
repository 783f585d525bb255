"""cluster.yaml, as the cluster launcher reads it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text()))


def check(config: dict[str, Any]) -> dict[str, Any]:
    prepared = dict(prepare_config(copy.deepcopy(config)))
    validate_config(prepared)
    return prepared


def test_the_launcher_takes_it(config: dict[str, Any]) -> None:
    prepared = check(config)
    assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}
    # Defaults that it does not override would install another Ray beside that of the image.
    installs = [prepared[f"{who}setup_commands"] for who in ("", "head_", "worker_")]
    assert installs == [[], [], []]


@pytest.mark.parametrize(
    "path", [("max_worker",), ("docker", "run_option"), ("available_node_types", "cpu", "min_worker"), ("auth", "user")]
)
def test_a_typo_is_rejected(config: dict[str, Any], path: tuple[str, ...]) -> None:
    block = config
    for name in path[:-1]:
        block = block[name]
    block[path[-1]] = 1
    with pytest.raises(ValidationError, match=path[-1]):
        check(config)


def test_it_says_what_the_guide_says(config: dict[str, Any]) -> None:
    options = " ".join(config["docker"]["run_options"])
    assert "RAY_AUTH_MODE=token" in options
    assert "RAY_USAGE_STATS_ENABLED=0" in options
    starts = [config[f"{who}_start_ray_commands"][-1] for who in ("head", "worker")]
    assert all("--disable-usage-stats" in start for start in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()


def test_it_holds_no_secret(config: dict[str, Any]) -> None:
    said = yaml.safe_dump(config).lower()
    assert "password" not in said
    assert "aws_secret" not in said
    assert "ray_auth_token=" not in said
