import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import CorpusConfig


def test_defaults_read_chitchat():
    config = CorpusConfig()
    assert (config.source, config.columns, config.max_records_per_user) == ("chitchat", ["user", "text"], 100)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_records_per_user": 0}, "max_records_per_user"),
        ({"holdout": 0.95}, "holdout"),
        ({"holdout": float("nan")}, "holdout"),
        ({"user": "text"}, "user"),
        ({"labels": ["shard"]}, "labels"),
        ({"labels": ["topic", "topic"]}, "labels"),
        ({"text": "body", "labels": ["body"]}, "labels"),
        ({"sauce": "x"}, "source"),
    ],
)
def test_wrong_settings_name_the_field(wrong, field):
    with pytest.raises(ConfigError, match=field):
        CorpusConfig.parse(wrong)
