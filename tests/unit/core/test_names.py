"""Users and labels have one name, whatever program, encoding or place in a file they come from."""

import unicodedata
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.names import has_lost_digits, name_of, spelled
from rayprivacy.corpus.users import canonical_labels, canonical_users
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.sanitize.settings import LabelsConfig

AROUND = (
    "\0\t\r\n \x07\x1f\x7f\x85\xa0\xad\u034f\u061c\u115f\u180e\u2000\u200b\u200c\u200d\u200e\u200f\u2028\u202a\u202e"
)
AROUND += "\u2060\u2066\u2069\u206f\u2800\u3000\u3164\ufeff\ufffe\ufff9\U000e0001"
ANYWHERE = "\xad\u061c\u200b\u200e\u200f\u202a\u202c\u2060\u2066\u2069\ufeff"
PEOPLE = ["ann", "caf\u00e9", "7", "007", "ann lee", "\u6797", "\u0645\u0646", "\U0001f468\u200d\U0001f469", "a\x1fb"]


@given(st.sampled_from(PEOPLE), st.text(AROUND), st.text(AROUND), st.sampled_from(["NFC", "NFD"]))
def test_what_a_program_puts_around_a_name_is_undone(name, before, behind, form):
    assert name_of(before + unicodedata.normalize(form, name) + behind) == name


@given(st.sampled_from(["ann lee", "caf\u00e9 7", "x@example.org"]), st.data())
def test_marks_that_print_nothing_are_undone_wherever_they_stand(name, data):
    at = data.draw(st.integers(0, len(name)))
    assert name_of(name[:at] + data.draw(st.text(ANYWHERE)) + name[at:]) == name
    assert name_of(name.replace(" ", data.draw(st.sampled_from("\xa0\u2009\u202f\u3000")))) == name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_name_is_its_own(text):
    name = name_of(text)
    assert name_of(name) == name != ""
    assert spelled(spelled(text)) == spelled(text)


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_number_is_one_name_in_every_spelling(number):
    spellings = [str(number), f"{number}.0", f"{number}.", repr(float(number)), f"{number}.000"]
    assert {name_of(each) for each in spellings} == {str(number)}
    for kind in (pa.int64(), pa.float64(), pa.string()):
        column = pa.chunked_array([pa.array([number]).cast(kind)])
        assert canonical_users(column).to_pylist() == canonical_labels(column, "x").to_pylist() == [str(number)]


@given(st.uuids())
def test_a_uuid_is_one_name(value):
    one = str(value)
    assert {name_of(each) for each in (one, one.upper(), f"{{{one.upper()}}}", value.urn)} == {one}
    assert name_of(str(uuid.UUID(one))) == one


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)))
def test_a_moment_is_one_name_in_every_unit_and_format(moment):
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    aware = moment.replace(tzinfo=UTC)
    found = {name_of(each) for each in (str(moment), moment.isoformat(), str(aware), aware.isoformat())}
    for unit in ("ms", "us", "ns"):
        for zone in (None, "UTC"):
            column = pa.chunked_array([pa.array([aware if zone else moment], pa.timestamp(unit, zone))])
            found |= set(canonical_users(column).to_pylist())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["v1.0.0", "1.10", "2020-01-01x", "6F9619FF", "Ann", "+7", "1e5x", "a\0b", "Trueman"])
def test_what_was_written_on_purpose_stays(name):
    assert name_of(name) == name


def test_digits_that_are_lost_name_no_user():
    assert all(map(has_lost_digits, ["1e+16", " 9007199254740992.0", "1e+999", "\ufeff1.2E16"]))
    assert not any(map(has_lost_digits, ["9007199254740993", "1e+15", "ann", None]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["5.0", " 4", "4.5", "", None]),
        pa.array([5.0, 4.0, 4.5, None, float("nan")], pa.float32()),
        pa.array(["5", "4.0", "4.5", "\u200b", None]).dictionary_encode(),
    ],
)
def test_labels_are_named_as_the_recipe_names_them(column):
    labels = canonical_labels(pa.chunked_array([column]), "stars").to_pylist()
    assert labels == ["5", "4", "4.5", None, None]
    codes = Codes(CodesConfig(values={"stars": ("5.0", "4", "4.5")}), ("stars",))
    assert [codes.index({"stars": label}) for label in labels] == [0, 1, 2, 3, 3]
    assert LabelsConfig(values={"stars": ("5.0", "4")}).values == {"stars": ("5", "4")}


def test_a_narrow_float_is_named_as_it_is_written():
    column = pa.chunked_array([pa.array([4.7, 5.0], pa.float32())])
    assert canonical_labels(column, "stars").to_pylist() == ["4.7", "5"]
