"""The file `checkpoint` of TensorFlow is read as protobuf's text_format reads it."""

from __future__ import annotations

import random

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.sources.bundle.state_file import CheckpointState, parse_state

SPELLINGS = {
    b'model_checkpoint_path: "ckpt-7"\nall_model_checkpoint_paths: "ckpt-7"\n': "ckpt-7",
    b'all_model_checkpoint_paths: "best"\nmodel_checkpoint_path : "model"\n': "model",
    b"model_checkpoint_path:'ckpt-7'": "ckpt-7",
    b'model_checkpoint_path: "\\346\\250\\241\\345\\236\\213"': "模型",
    b'model_checkpoint_path: "C:\\\\runs\\\\ckpt-7"': "C:\\runs\\ckpt-7",
    b"# saved by hand\nmodel_checkpoint_path\t:\n \"ck\"  'pt-7' ; ": "ckpt-7",
    b'model_checkpoint_path: "\\x63kpt-\\u0037"': "ckpt-7",
    b'model_checkpoint_path: "ckpt-6" model_checkpoint_path: "ckpt-7"': "ckpt-7",
    b'all_model_checkpoint_paths: ["ckpt-6", "ckpt-7"], model_checkpoint_path: "ckpt-7"': "ckpt-7",
    b'model_checkpoint_path: "a\\"b"\nall_model_checkpoint_timestamps: 1.5e9\nlast_preserved_timestamp: -inf': 'a"b',
}


def _judge() -> type:
    """Return the message of tensorflow/python/training/checkpoint_state.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="checkpoint_state.proto", syntax="proto3")
    message = file.message_type.add(name="CheckpointState")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, label) in enumerate(
        (
            ("model_checkpoint_path", field.TYPE_STRING, field.LABEL_OPTIONAL),
            ("all_model_checkpoint_paths", field.TYPE_STRING, field.LABEL_REPEATED),
            ("all_model_checkpoint_timestamps", field.TYPE_DOUBLE, field.LABEL_REPEATED),
            ("last_preserved_timestamp", field.TYPE_DOUBLE, field.LABEL_OPTIONAL),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("CheckpointState"))


def _judged(data: bytes) -> CheckpointState | None:
    """Return what text_format reads, as tensorflow/python/checkpoint/checkpoint_management.py asks it."""
    try:
        state = text_format.Merge(data.decode(), _JUDGE())
    except (text_format.ParseError, UnicodeDecodeError):
        return None
    return CheckpointState(state.model_checkpoint_path, tuple(state.all_model_checkpoint_paths))


_JUDGE = _judge()


@pytest.mark.parametrize("data", SPELLINGS)
def test_each_spelling_of_the_file_says_which_bundle_is_the_newest(data: bytes) -> None:
    """Quotes, escapes, comments and spaces are read as TensorFlow reads them."""
    assert parse_state(data).newest == SPELLINGS[data]
    assert parse_state(data) == _judged(data)


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b'model_checkpoint_path: "a',
        b"model_checkpoint_path: 7",
        b'model_checkpoint_path "a" 7',
        b'model_checkpoint_path: "\xff"',
        b'model_checkpoint_path: "\\377"',
        b'all_model_checkpoint_paths: ["a" "b"',
    ],
)
def test_a_file_that_tensorflow_cannot_read_is_damaged_at_a_place(data: bytes) -> None:
    """Where text_format raises ParseError there is no newest bundle, but an error with an offset."""
    with pytest.raises(CorruptError) as caught:
        parse_state(data, "run/checkpoint")
    assert _judged(data) is None
    assert caught.value.path == "run/checkpoint"
    assert caught.value.offset is not None


def test_no_text_is_read_as_another_bundle_than_the_one_that_tensorflow_reads() -> None:
    """Spellings with pieces left out, doubled and exchanged: text_format's answer is ours, or we refuse."""
    chance = random.Random(40)
    pieces = [piece for data in SPELLINGS for piece in data.decode().replace(":", " : ").split(" ")]
    pieces += ['""', "''", "]", "[", ",", ";", "\n", "#x\n", '"\\0"', "-", "1", "'\\'"]
    for _ in range(4000):
        data = " ".join(chance.choices(pieces, k=chance.randrange(1, 9))).encode()
        try:
            found = parse_state(data)
        except CorruptError:
            continue
        assert found == _judged(data), data


def test_the_names_are_in_the_order_of_their_saves_and_the_newest_is_last() -> None:
    """The newest one may be an older save that was loaded and kept; other paths keep their places."""
    assert CheckpointState("/old/b", ("a", "b", "C:\\runs\\c")).names == ("a", "c", "b")
    assert CheckpointState("").names == ()
