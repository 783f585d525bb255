"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import rayprivacy

MODULES = [module.name for module in pkgutil.walk_packages(rayprivacy.__path__, "rayprivacy.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
