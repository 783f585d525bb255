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


def test_a_typo_is_rejected(config: dict[str, Any]) -> None:
    config["available_node_types"]["cpu"]["min_worker"] = 1
    with pytest.raises(ValidationError, match="min_worker"):
        check(config)


def test_it_says_what_the_guide_says(config: dict[str, Any]) -> None:
    options = " ".join(config["docker"]["run_options"])
    assert "RAY_AUTH_MODE=token" in options
    assert "RAY_USAGE_STATS_ENABLED=0" in options
    starts = [config[f"{who}_start_ray_commands"][-1] for who in ("head", "worker")]
    assert all("--disable-usage-stats" in start for start in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()
    said = yaml.safe_dump(config).lower()
    assert not [word for word in ("password", "aws_secret", "ray_auth_token=") if word in said]
