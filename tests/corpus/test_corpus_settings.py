import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import Layout
from rayprivacy.corpus.settings import WHOLE, CorpusConfig


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
        ({"labels": ["__place"]}, "labels"),
        ({"labels": ["__order"]}, "labels"),
        ({"labels": ["topic", "topic"]}, "labels"),
        ({"text": "body", "labels": ["body"]}, "labels"),
        ({"sauce": "x"}, "source"),
    ],
)
def test_wrong_settings_name_the_field(wrong, field):
    with pytest.raises(ConfigError, match=field):
        CorpusConfig.parse(wrong)


def test_rows_by_place_are_not_cut_by_characters_and_hold_no_phrases():
    assert Layout(CorpusConfig(max_chars=WHOLE), 1, 1, by_place=True).schema.names[-1] == "__place"
    with pytest.raises(ConfigError, match=r"corpus\.max_chars is 2000, and a cut by characters would let words decide"):
        Layout(CorpusConfig(), 1, 1, by_place=True)
    phrases = CorpusConfig(max_chars=WHOLE, phrases="-", max_shards_per_phrase=1)
    with pytest.raises(ConfigError, match=r"privacy\.unit is 'phrase', and the claim compares documents word for word"):
        Layout(phrases, 1, 1, PrivacyUnit.PHRASE, by_place=True)
