"""Topics: equal mixtures have equal shares, and a topic that is left out is missed."""

from rayprivacy.evaluation.words import Topics

TEA = [f"i drink {adjective} tea with {what}" for adjective in ("green", "black", "hot") for what in ("milk", "honey")]
RAIN = [f"the {what} will bring {how} rain" for what in ("storm", "wind", "cloud") for how in ("heavy", "light")]
TRAIN = [f"take the {when} train to the {where}" for when in ("early", "late", "next") for where in ("city", "coast")]


def test_the_same_texts_have_distance_zero() -> None:
    texts = (TEA + RAIN + TRAIN) * 4
    found = Topics(texts).distances(texts, texts[::-1])
    assert found == {"topic_total_variation": 0, "topic_jensen_shannon": 0}


def test_a_topic_that_is_left_out_is_its_share() -> None:
    texts = (TEA + RAIN + TRAIN) * 4
    found = Topics(texts).distances(texts, (TEA + RAIN) * 6)
    assert abs(found["topic_total_variation"] - 1 / 3) < 0.1
    assert found["topic_jensen_shannon"] > 0.1


def test_clusters_come_from_real_text_alone() -> None:
    topics = Topics(TEA * 10)
    assert topics.counts(["nothing of this was seen", "zzz"]).sum() == 2
    assert topics.count <= len(TEA)


def test_texts_that_are_all_the_same_are_one_topic() -> None:
    topics = Topics(["ok"] * 30)
    assert topics.count == 1
    assert topics.distances(["ok"] * 30, ["fine"] * 30)["topic_total_variation"] == 0
