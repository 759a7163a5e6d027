"""Names are imported when they are first used, and then belong to their package."""

from __future__ import annotations

import sys
import types

import pytest

from amp import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("somewhere")
    homes = {"Fraction": "fractions", "child": "somewhere.child"}
    made.__getattr__ = lazy_names.getter("somewhere", homes)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "somewhere", made)
    monkeypatch.setitem(sys.modules, "somewhere.child", types.ModuleType("child"))
    return made


def test_a_name_comes_from_its_home_once(package: types.ModuleType) -> None:
    from fractions import Fraction

    assert "Fraction" not in vars(package)
    assert package.Fraction is Fraction
    assert vars(package)["Fraction"] is Fraction


def test_a_module_of_the_package_is_itself(package: types.ModuleType) -> None:
    assert package.child is sys.modules["somewhere.child"]


def test_an_unknown_name_is_named_with_its_package(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match="'somewhere' has no attribute 'other'"):
        package.other  # noqa: B018
