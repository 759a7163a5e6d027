"""Something is done once a module is loaded: once, and only then."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import threading

import pytest

from amp.integration import imports

NAME = "amp_example_module"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that modules are found in; nothing of them stays."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield tmp_path
    sys.modules.pop(NAME, None)


@pytest.fixture
def seen():
    """What each call of `note` found in the module."""
    return []


@pytest.fixture
def note(seen):
    return lambda: seen.append(getattr(sys.modules[NAME], "value", None))


def write(place, text):
    (place / f"{NAME}.py").write_text(text)
    importlib.invalidate_caches()


def test_the_action_sees_the_whole_module_and_leaves_no_trace(place, seen, note):
    write(place, "value = 3\n")
    before = list(sys.meta_path)
    imports.after(NAME, note)
    assert importlib.util.find_spec(NAME) is not None  # found is not loaded
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [3]
    assert sys.meta_path == before
    plain = importlib.util.spec_from_file_location(NAME, place / f"{NAME}.py")
    assert type(module.__loader__) is type(module.__spec__.loader) is type(plain.loader)
    importlib.reload(module)
    assert seen == [3]


def test_a_loaded_module_is_answered_now(place, seen, note):
    write(place, "value = 4\n")
    importlib.import_module(NAME)
    imports.after(NAME, note)
    assert seen == [4]


def test_the_same_request_twice_is_one_and_others_are_their_own(place, seen, note):
    write(place, "value = 5\n")
    imports.after(NAME, note)
    imports.after(NAME, note)
    others = []
    imports.after(NAME, lambda: others.append(1))
    importlib.import_module(NAME)
    assert (seen, others) == ([5], [1])


def test_a_module_that_fails_to_load_is_waited_for_again(place, seen, note):
    write(place, "raise OSError('not yet')\n")
    imports.after(NAME, note)
    with pytest.raises(OSError, match="not yet"):
        importlib.import_module(NAME)
    assert seen == []
    write(place, "value = 'another size'\n")
    importlib.import_module(NAME)
    assert seen == ["another size"]


def test_a_module_that_is_not_there_stays_so(place, note):
    imports.after(NAME, note)
    assert importlib.util.find_spec(NAME) is None
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)


def package(place, **texts):
    """A package; of each module the text."""
    (place / "amp_example").mkdir()
    for name, text in {"__init__": "", **texts}.items():
        (place / "amp_example" / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


@pytest.fixture
def loaded(place, monkeypatch):
    """What modules of the package say when they are loaded; none of them stays."""
    monkeypatch.setattr(sys, "loaded", [], raising=False)
    yield sys.loaded
    for name in [name for name in sys.modules if name.startswith("amp_example")]:
        del sys.modules[name]


SAYS = "import sys\nsys.loaded.append(__name__.rpartition('.')[2])\n"


def test_the_action_waits_for_modules_of_the_package_that_are_half_loaded(
    place, loaded
):
    write(place, "")
    inner = f"import {NAME}\n{SAYS}"
    package(place, outer=f"from amp_example import inner\n{SAYS}", inner=inner)
    before = list(sys.meta_path)
    imports.after(NAME, lambda: loaded.append("action"), package="amp_example")
    module = importlib.import_module("amp_example.outer")
    assert loaded == ["inner", "outer", "action"]
    assert sys.meta_path == before
    assert type(module.__loader__) is type(module.__spec__.loader)
    assert "_amp_" not in type(module.__loader__).__module__


def test_the_action_waits_for_no_module_that_is_loaded(place, loaded):
    write(place, SAYS)
    package(place, inner=SAYS)
    imports.after(NAME, lambda: loaded.append("action"), package="amp_example")
    importlib.import_module("amp_example.inner")
    assert loaded == ["inner"]
    importlib.import_module(NAME)
    assert loaded == ["inner", NAME, "action"]


def test_the_action_comes_though_the_module_of_the_package_fails(place, loaded):
    write(place, SAYS)
    package(place, inner=f"import {NAME}\nraise OSError('broken')\n")
    imports.after(NAME, lambda: loaded.append("action"), package="amp_example")
    with pytest.raises(OSError, match="broken"):
        importlib.import_module("amp_example.inner")
    assert loaded == [NAME, "action"]


def test_a_loader_of_the_package_still_tells_its_source(place, loaded):
    package(place, inner="value = 6\n")
    imports.after(NAME, lambda: None, package="amp_example")
    spec = importlib.util.find_spec("amp_example.inner")
    assert spec.loader.get_source("amp_example.inner") == "value = 6\n"


def test_of_two_that_wait_neither_acts_on_a_module_that_is_half_loaded(place, loaded):
    write(place, "")
    package(place, inner=f"import {NAME}\n{SAYS}")
    before = list(sys.meta_path)
    for name in ("first", "second"):
        imports.after(NAME, lambda n=name: loaded.append(n), package="amp_example")
    importlib.import_module("amp_example.inner")
    assert loaded[0] == "inner"
    assert sorted(loaded[1:]) == ["first", "second"]
    assert sys.meta_path == before


def test_the_action_waits_for_no_module_of_another_thread(place, loaded, monkeypatch):
    """That one may take long, and what this thread runs next is to be switched on."""
    began, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "events", (began, go_on), raising=False)
    write(place, SAYS)
    waits = "import sys\nsys.events[0].set()\nsys.events[1].wait(60)\n"
    package(place, inner=waits + SAYS)
    imports.after(NAME, lambda: loaded.append("action"), package="amp_example")
    other = threading.Thread(
        target=importlib.import_module, args=("amp_example.inner",)
    )
    other.start()
    assert began.wait(60)
    importlib.import_module(NAME)
    assert loaded == [NAME, "action"]
    go_on.set()
    other.join()
    assert loaded == [NAME, "action", "inner"]


def test_a_loader_of_the_package_can_be_copied(place, loaded):
    package(place, inner="value = 7\n")
    imports.after(NAME, lambda: None, package="amp_example")
    spec = importlib.util.find_spec("amp_example.inner")
    again = copy.copy(spec.loader)
    assert again.get_source("amp_example.inner") == "value = 7\n"
