"""Embedded sets are what they say; real formats are read; what is wrong is named."""

from __future__ import annotations

import gzip
import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from convergence.data import images, packed_boxes, pairs, phrases, scenes, table, text
from convergence.errors import DataError

ANNOTATION = """<annotation><size><width>40</width><height>20</height></size>
<object><name>dog</name><difficult>1</difficult><bndbox>
<xmin>1</xmin><ymin>6</ymin><xmax>20</xmax><ymax>20</ymax></bndbox></object>
</annotation>"""
ADULT = (
    "age,workclass,education,education_num,marital_status,occupation,relationship,"
    "race,gender,capital_gain,capital_loss,hours_per_week,native_country,income_bracket"
)


def jpeg(side: int = 16, shade: int = 200) -> bytes:
    pixels = np.full((side, side, 3), shade, np.uint8)
    return bytes(tf.io.encode_jpeg(pixels).numpy())


def test_digits_are_split_and_enlarged() -> None:
    found = images.load(None, side=16)
    assert len(found.train) + len(found.test) == 1797
    x, y = found.train.take(np.array([5, 5, 7]))
    assert x.shape == (3, 16, 16, 1)
    assert x.dtype == np.float32
    assert -1 <= x.min() < x.max() <= 1
    assert y[0] == y[1]
    np.testing.assert_array_equal(x[0, ::2, ::2], x[0, 1::2, 1::2])


def test_packed_images_are_read_with_and_without_channels(
    tmp_path: pathlib.Path,
) -> None:
    grey = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    labels = np.array([0, 1, 2, 1])
    packed = {"x_train": grey, "y_train": labels, "x_test": grey, "y_test": labels}
    (tmp_path / "sets").mkdir()
    np.savez(tmp_path / "sets" / "fashion_mnist.npz", **packed)
    found = images.load(tmp_path, side=32)
    assert (found.name, found.side, found.channels) == ("fashion_mnist", 8, 1)
    assert found.classes == 3
    x, y = found.test.take(np.array([3]))
    np.testing.assert_allclose(x[0, :, :, 0], grey[3] / 127.5 - 1, atol=1e-6)
    assert y.tolist() == [1]


def test_packed_images_are_averaged_down_to_a_side_that_divides_theirs(
    tmp_path: pathlib.Path,
) -> None:
    own = np.arange(2 * 16 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    labels = np.array([0, 1])
    packed = {"x_train": own, "y_train": labels, "x_test": own, "y_test": labels}
    np.savez(tmp_path / "cifar10.npz", **packed)
    found = images.load(tmp_path, side=2)
    assert (found.name, found.side, found.channels) == ("cifar10_2", 2, 3)
    assert isinstance(found.train, images.Arrays)
    corner = np.round(own[1, 2:, 2:].mean(axis=(0, 1)))
    np.testing.assert_array_equal(found.train.images[1, 1, 1], corner)
    for side in (3, 4, 8):
        kept = images.load(tmp_path, side=side)
        assert (kept.name, kept.side) == ("cifar10", 4)


def records(path: pathlib.Path, labels: list[int]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in labels:
            shade = tf.train.BytesList(value=[jpeg(shade=20 * label)])
            number = tf.train.Int64List(value=[label])
            features = {
                "image/encoded": tf.train.Feature(bytes_list=shade),
                "image/class/label": tf.train.Feature(int64_list=number),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def test_records_are_read_in_any_order(tmp_path: pathlib.Path) -> None:
    records(tmp_path / "train-00000-of-00002", [1, 2])
    records(tmp_path / "train-00001-of-00002", [3])
    records(tmp_path / "validation-00000-of-00001", [4])
    found = images.load(tmp_path, side=8)
    assert (len(found.train), len(found.test)) == (3, 1)
    x, y = found.train.take(np.array([2, 0]))
    assert y.tolist() == [2, 0]  # labels of the files begin with 1
    assert x.shape == (2, 8, 8, 3)
    # JPEG keeps a flat shade within 2 of 255.
    np.testing.assert_allclose(
        x.mean((1, 2, 3)), [60 / 127.5 - 1, 20 / 127.5 - 1], 0.02
    )


def test_scenes_hold_digits_that_masks_and_boxes_agree_on() -> None:
    found = scenes.digits(20, 0, 48, 10)
    assert found.images.shape == (20, 48, 48, 3)
    assert set(np.unique(found.masks)) <= set(range(11))
    for boxes, labels, mask in zip(found.boxes, found.labels, found.masks, strict=True):
        assert (labels > 0).any()
        for (top, left, bottom, right), label in zip(boxes, labels, strict=True):
            rows = slice(round(top * 48), round(bottom * 48))
            inside = mask[rows, round(left * 48) : round(right * 48)]
            assert label == 0 or (inside == label).any()
    again = scenes.digits(20, 0, 48, 10)
    np.testing.assert_array_equal(found.images, again.images)


def voc(root: pathlib.Path) -> None:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main", "SegmentationClass"):
        (root / name).mkdir(parents=True)
    (root / "ImageSets/Segmentation").mkdir()
    for split in ("train", "val"):
        (root / f"ImageSets/Main/{split}.txt").write_text("000001  1\n")
        (root / f"ImageSets/Segmentation/{split}.txt").write_text("000001\n")
    (root / "Annotations/000001.xml").write_text(ANNOTATION)
    (root / "JPEGImages/000001.jpg").write_bytes(jpeg())
    mask = np.full((16, 16, 1), 12, np.uint8)
    data = tf.io.encode_png(mask).numpy()
    (root / "SegmentationClass/000001.png").write_bytes(data)


def test_voc_is_read_with_corners_as_fractions(tmp_path: pathlib.Path) -> None:
    voc(tmp_path / "VOC2007")
    found = scenes.load(tmp_path, side=8, masks=True)
    np.testing.assert_allclose(found.train.boxes, [[[0.25, 0.0, 1.0, 0.5]]])
    assert found.train.labels.tolist() == [[12]]
    assert found.train.difficult.tolist() == [[True]]
    assert (found.train.masks == 12).all()
    assert (scenes.load(tmp_path, side=8).train.masks == scenes.VOID).all()


def packed_scenes(root: pathlib.Path, told: Any = None) -> None:
    data = jpeg()
    held = {}
    for split in ("train", "test"):
        held[f"{split}_jpeg"] = np.frombuffer(data * 2, np.uint8)
        held[f"{split}_offset"] = np.arange(3) * len(data)
    np.savez(root / "bccd_16.npz", **held)
    entry = {"boxes": [[0.0, 0.0, 0.5, 1.0]], "classes": [2]}
    told = told or {
        "classes": {"1": "a", "2": "b"},
        "splits": {s: [entry, {"boxes": [], "classes": []}] for s in ("train", "test")},
    }
    data = gzip.compress(json.dumps(told).encode())
    (root / "bccd_16_boxes.json.gz").write_bytes(data)


def test_packed_scenes_are_read(tmp_path: pathlib.Path) -> None:
    packed_scenes(tmp_path)
    found = scenes.load(tmp_path, side=16)
    assert (found.name, found.kinds) == ("bccd_16", ("a", "b"))
    assert found.test.labels.tolist() == [[2], [0]]
    assert (found.test.masks[0, :8] == 2).any()
    assert not found.test.masks[0, 8:].any()
    assert not found.test.masks[1].any()


def test_ellipses_that_stand_for_masks_are_in_the_name(tmp_path: pathlib.Path) -> None:
    packed_scenes(tmp_path)
    assert scenes.load(tmp_path, side=16, masks=True).name == "bccd_16_ellipses"
    assert scenes.load(None, side=16, masks=True).name == "digit_scenes"  # are masks


def test_ellipses_fill_boxes_and_small_ones_are_on_top() -> None:
    boxes = np.array([[0.25, 0.25, 0.75, 0.75], [0.0, 0.0, 1.0, 1.0]])
    mask = packed_boxes.ellipses(boxes, np.array([1, 2]), 64)
    # Areas of ellipses: pi/4 of the box; a pixel's border is 1/64 of its side.
    assert np.mean(mask == 1) == pytest.approx(np.pi / 16, abs=0.25 * 4 / 64)
    assert np.mean(mask > 0) == pytest.approx(np.pi / 4, abs=4 / 64)


def test_topics_are_words_with_the_rare_ones_unknown() -> None:
    found = text.load(None, most=300)
    assert len(found.words) == 300
    assert found.words[: len(text.SPECIALS)] == text.SPECIALS
    assert len(found.train) > 50_000
    assert {found.train.max(), found.test.max()} == {299}
    assert 0 < np.mean(found.train == text.UNKNOWN) < 0.5


def test_penn_treebank_keeps_its_unknown_words(tmp_path: pathlib.Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text(" the <unk> sat N \n" * 300)
    found = text.load(tmp_path)
    line = [found.words[number] for number in found.train[:5]]
    assert line == ["the", "<unk>", "sat", "n", "<eos>"]


def test_letters_stand_for_words_where_they_are_wanted(tmp_path: pathlib.Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text(" The  cat. \n" * 300)
    found = text.load(tmp_path, most=100, letters=True)
    line = [found.words[number] for number in found.train[:9]]
    assert line == [*"the cat.", "<eos>"]
    assert len(found.words) == len(text.SPECIALS) + len(set("the cat."))
    assert found.name == "ptb_letters"
    assert text.load(None, most=100, letters=True).name == "pydoc_topics_letters"


def test_tables_scale_and_bucket_by_training_rows() -> None:
    found = table.load(None)
    assert (len(found.train), len(found.test)) == (1198, 599)
    np.testing.assert_allclose(found.train.numbers.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(found.train.numbers.std(0), 1.0, atol=1e-5)
    own = [set(column) for column in found.train.ids.T]
    assert not set.intersection(own[0], own[1])
    assert found.train.ids.max() < found.rows


def test_adult_is_read_and_unknown_words_are_category_0(
    tmp_path: pathlib.Path,
) -> None:
    row = "39,Private,HS,9,Single,Sales,Own,White,Male,0,0,40,Peru,<=50K"
    more = "50,Private,BA,13,Single,Sales,Own,White,Male,9,0,60,Peru,>50K"
    other = "50,Mars,BA,13,Single,Sales,Own,White,Male,9,0,60,Peru,>50K"
    (tmp_path / "adult_train.csv").write_text("\n".join([ADULT, row, more]))
    (tmp_path / "adult_test.csv").write_text("\n".join([ADULT, other]))
    found = table.load(tmp_path)
    assert found.train.labels[:, 0].tolist() == [0.0, 1.0]
    assert found.test.ids[0, 0] == 0
    assert found.train.ids[0, 0] == 1


def test_phrases_are_different_and_the_same_each_time() -> None:
    german, english = phrases.phrases(50, 3)
    assert len(set(german)) == 50
    assert phrases.phrases(50, 3) == (german, english)
    assert phrases._words(234, "cardinal") == (
        "zweihundertvierunddreißig",
        "two hundred and thirty-four",
    )


def test_pairs_are_padded_numbers_that_give_the_text_back() -> None:
    found = pairs.load(None, vocabulary=200, steps=30, most=300)
    assert found.source.shape[1] == found.test_source.shape[1] == 30
    assert found.vocabulary <= 200
    ends = (found.target == pairs.END).sum(axis=1)
    assert (ends == 1).all()
    _, english = phrases.phrases(300 + pairs.TESTED, 0)
    assert found.text(found.target[0]) in english
    assert len(found.references) == pairs.TESTED


def test_sentence_files_are_read(tmp_path: pathlib.Path) -> None:
    german, english = phrases.phrases(120, 0)
    for split, part in (("train", slice(0, 100)), ("test", slice(100, 120))):
        (tmp_path / f"{split}.de").write_text("\n".join(german[part]))
        (tmp_path / f"{split}.en").write_text("\n".join(english[part]))
    found = pairs.load(tmp_path, vocabulary=150, steps=40, most=90)
    assert len(found.source) <= 90
    assert found.references == tuple(english[100:])
    few = pairs.load(tmp_path, vocabulary=150, steps=40, most=90, tested=7)
    assert few.references == tuple(english[100:107])
    np.testing.assert_array_equal(few.test_source, found.test_source[:7])
    assert len(few.source) == len(found.source)


def write_nothing(root: pathlib.Path) -> None:
    pass


def no_array(root: pathlib.Path) -> None:
    np.savez(root / "cifar10.npz", x_train=np.zeros((1, 8, 8, 3), np.uint8))


def no_zip(root: pathlib.Path) -> None:
    (root / "cifar10.npz").write_bytes(b"PK no zip file")


def not_square(root: pathlib.Path) -> None:
    x, y = np.zeros((2, 8, 9, 3), np.uint8), np.zeros(2)
    np.savez(root / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def cut_record(root: pathlib.Path) -> None:
    records(root / "train-00000-of-00001", [1])
    records(root / "validation-00000-of-00001", [1])
    whole = (root / "train-00000-of-00001").read_bytes()
    (root / "train-00000-of-00001").write_bytes(whole[:-9])


def no_validation(root: pathlib.Path) -> None:
    records(root / "train-00000-of-00001", [1])


def no_picture(root: pathlib.Path) -> None:
    voc(root)
    (root / "JPEGImages/000001.jpg").unlink()


def bad_picture(root: pathlib.Path) -> None:
    voc(root)
    (root / "JPEGImages/000001.jpg").write_bytes(b"no JPEG")


def bad_class(root: pathlib.Path) -> None:
    voc(root)
    text = ANNOTATION.replace("dog", "dragon")
    (root / "Annotations/000001.xml").write_text(text)


def no_boxes(root: pathlib.Path) -> None:
    packed_scenes(root)
    (root / "bccd_16_boxes.json.gz").unlink()


def bad_boxes(root: pathlib.Path) -> None:
    packed_scenes(root, {"classes": {}, "splits": {}})


def fewer_boxes(root: pathlib.Path) -> None:
    packed_scenes(root, {"classes": {}, "splits": {"train": [], "test": []}})


def no_english(root: pathlib.Path) -> None:
    (root / "train.de").write_text("eins\n")


def fewer_lines(root: pathlib.Path) -> None:
    (root / "train.de").write_text("eins\nzwei\n")
    (root / "train.en").write_text("one\n")


def not_gzip(root: pathlib.Path) -> None:
    (root / "train.de.gz").write_bytes(b"eins\n")
    (root / "train.en.gz").write_bytes(b"one\n")


def short_text(root: pathlib.Path) -> None:
    for split in ("train", "test"):
        (root / f"ptb.{split}.txt").write_text("the cat\n")


def no_column(root: pathlib.Path) -> None:
    for split in ("train", "test"):
        (root / f"adult_{split}.csv").write_text("age,sex\n1,2\n")


def no_number(root: pathlib.Path) -> None:
    row = "x,Private,HS,9,Single,Sales,Own,White,Male,0,0,40,Peru,<=50K"
    for split in ("train", "test"):
        (root / f"adult_{split}.csv").write_text(f"{ADULT}\n{row}\n")


LOADERS: dict[str, Any] = {
    "images": lambda root: images.load(root, side=8).train.take(np.array([0])),
    "scenes": lambda root: scenes.load(root, side=8),
    "pairs": lambda root: pairs.load(root, vocabulary=50, steps=9, most=9),
    "text": text.load,
    "table": table.load,
}


@pytest.mark.parametrize(
    ("kind", "spoil", "file", "allowed"),
    [
        *((kind, write_nothing, "", "one of") for kind in LOADERS),
        ("images", no_array, "cifar10.npz", "x_train, y_train, x_test, y_test"),
        ("images", no_zip, "cifar10.npz", "an .npz file"),
        ("images", not_square, "cifar10.npz", "square images"),
        ("images", cut_record, "train-00000-of-00001", "TFRecords"),
        ("images", no_validation, "validation-00000-of-00128", "belongs to train"),
        ("scenes", no_picture, "JPEGImages/000001.jpg", "a file"),
        ("scenes", bad_picture, "JPEGImages/000001.jpg", "a JPEG image"),
        ("scenes", bad_class, "Annotations/000001.xml", "an annotation"),
        ("scenes", no_boxes, "bccd_16_boxes.json.gz", "belongs to bccd_16.npz"),
        ("scenes", bad_boxes, "bccd_16_boxes.json.gz", '"splits"'),
        ("scenes", fewer_boxes, "bccd_16.npz", "as many images"),
        ("pairs", no_english, "train.en", "a file"),
        ("pairs", fewer_lines, "train.en", "as many lines"),
        ("pairs", not_gzip, "train.de.gz", "text in UTF-8"),
        ("text", short_text, "ptb.train.txt", "running text"),
        ("table", no_column, "adult_train.csv", "CSV with a header"),
        ("table", no_number, "adult_train.csv", "CSV with a header"),
    ],
)
def test_what_is_missing_or_malformed_is_named(
    kind: str, spoil: Any, file: str, allowed: str, tmp_path: pathlib.Path
) -> None:
    spoil(tmp_path)
    with pytest.raises(DataError) as caught:
        LOADERS[kind](tmp_path)
    assert caught.value.where.endswith(str(tmp_path / file))
    assert allowed in caught.value.allowed
    assert caught.value.remedy


def test_a_directory_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        text.load(tmp_path / "nowhere")


def test_annotations_without_sizes_are_malformed(tmp_path: pathlib.Path) -> None:
    voc(tmp_path)
    (tmp_path / "Annotations/000001.xml").write_text("<annotation/>")
    with pytest.raises(DataError, match="no size/width"):
        scenes.load(tmp_path, side=8)


def test_masks_are_palette_images(tmp_path: pathlib.Path) -> None:
    voc(tmp_path)
    colours = tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)).numpy()
    (tmp_path / "SegmentationClass/000001.png").write_bytes(colours)
    with pytest.raises(DataError, match="its mode is RGB"):
        scenes.load(tmp_path, side=8, masks=True)
    assert io.BytesIO(colours).read(4) == b"\x89PNG"
