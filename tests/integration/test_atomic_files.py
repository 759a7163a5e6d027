"""Files are there whole or not at all, with the rights that `open` would give."""

from __future__ import annotations

import pytest

from amp.integration import atomic_files


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, sync):
    target = tmp_path / "new" / "file.json"
    for text in ("one", "zw\u00f6lf"):
        atomic_files.write(target, text, sync=sync)
        assert target.read_text(encoding="utf-8") == text
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_process_leaves_is_known_by_its_name(tmp_path):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".file.json.abcdefg1").touch()
    (tmp_path / "target.json.abcdefg1").mkdir()
    with atomic_files.beside(tmp_path / f"{60 * 'x'}.json") as part:
        part.touch()
        assert list(atomic_files.left_over(tmp_path)) == [part.parent]
    assert not list(atomic_files.left_over(tmp_path))


def test_its_rights_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    atomic_files.write(tmp_path / "whole", "text")
    rights = [(tmp_path / name).stat().st_mode for name in ("plain", "whole")]
    assert rights[0] == rights[1]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_an_error_half_way_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    target = tmp_path / "file"
    target.write_text("old")

    def fails(part):
        part.write_text("half")
        raise failure

    with (
        pytest.raises(failure),
        atomic_files.beside(target) as part,
    ):
        fails(part)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_appears_with_all_that_is_in_it(tmp_path):
    with atomic_files.beside(tmp_path / "made") as part:
        part.mkdir()
        (part / "inside").touch()
        assert not (tmp_path / "made").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "inside"]


def test_a_directory_that_is_there_is_replaced_or_comes_back(tmp_path, monkeypatch):
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    replace = atomic_files.os.replace

    def refuses(source, place):
        if (source / "new").exists():
            raise OSError("no")
        replace(source, place)

    def make():
        with atomic_files.beside(target) as part:
            part.mkdir()
            (part / "new").touch()

    monkeypatch.setattr(atomic_files.os, "replace", refuses)
    with pytest.raises(OSError, match="no"):
        make()
    assert [path.name for path in target.iterdir()] == ["old"]
    monkeypatch.setattr(atomic_files.os, "replace", replace)
    make()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["before", "b" * 255])
def test_a_directory_of_any_name_is_replaced(tmp_path, name):
    for content in ("old", "new"):
        with atomic_files.beside(tmp_path / name) as part:
            part.mkdir()
            (part / content).touch()
    assert [path.name for path in tmp_path.rglob("*")] == [name, "new"]


@pytest.mark.parametrize(("moves", "left"), [(1, "old"), (2, "new")])
def test_control_c_while_a_directory_is_replaced_leaves_one(
    tmp_path, monkeypatch, moves, left
):
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    replace, done = atomic_files.os.replace, []

    def interrupted(source, place):
        replace(source, place)
        done.append(source)
        if len(done) == moves:
            raise KeyboardInterrupt

    def make():
        with atomic_files.beside(target) as part:
            part.mkdir()
            (part / "new").touch()

    monkeypatch.setattr(atomic_files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", left]
