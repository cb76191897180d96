"""The store contract: tests that every store passes, in classes that the tests of each store extend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import (
    execute_copy,
    list_versions,
    parse_ref,
    plan_copy,
    prepare_reshard,
    recover,
    reshard_version,
    resolve,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, RefusedError
from edl_ckpt.core.operations.annotate import add_tag, set_metrics, set_note
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.plan import read_policy, store_policy
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.storage import LocalStore, open_store
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter


class Contract:
    """What every store must do; subclasses say where the golden checkpoint is put."""

    location: str

    def test_listing(self) -> None:
        """Versions, shards, sizes and states are those of the directory."""
        versions = list_versions(self.location, grace_seconds=0).versions
        assert [(v.version, v.state.value, len(v.shards)) for v in versions] == [
            (9, "complete", 2),
            (20, "complete", 2),
            (100, "incomplete", 1),
        ]
        assert versions[1].size_bytes == 308
        assert versions[1].ref == f"{self.location}@20"

    def test_ranges(self) -> None:
        """A range is exactly what was asked for; one past the end is an error that says where."""
        store = open_store(self.location)
        path = list_versions(self.location).versions[0].shards[0].path
        with store.open(path) as reader:
            whole = reader.read(0, reader.size_bytes)
            assert len(whole) == 114
            assert reader.read(10, 5) == whole[10:15]
            assert reader.read(3, 0) == b""
            buffer = bytearray(20)
            reader.read_into(90, memoryview(buffer))
            assert bytes(buffer) == whole[90:110]
            assert reader.bytes_read == 114 + 5 + 20
            with pytest.raises(LockedError):
                reader.read(110, 10)
            reader.check_unchanged()

    def test_nothing_there(self) -> None:
        """A location or a file that is not there is NotFoundError, and so is a FileNotFoundError."""
        with pytest.raises(NotFoundError):
            list_versions(self.location + "-not")
        with pytest.raises(FileNotFoundError):
            open_store(self.location).open(f"{self.location}/version-9/none")

    def test_changed(self) -> None:
        """A file that is another one by now is told; its bytes are never mixed with those of the old one."""
        store = open_store(self.location)
        path = list_versions(self.location).versions[0].shards[0].path
        with store.open(path) as reader:
            before = reader.read(0, 60)
            self.overwrite(path, b"y" * 200)
            with pytest.raises(LockedError):
                reader.check_unchanged()
        with store.open(path) as reader:
            assert reader.read(0, 60) == b"y" * 60 != before

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file's place."""
        raise NotImplementedError

    def test_small_files(self) -> None:
        """A small file is written, replaced, listed, read and removed; removing twice is no error."""
        store = open_store(self.location)
        name = ".edl-ckpt-0/meta-0/77.json"
        assert store.read_small(name) is None
        assert store.names(".edl-ckpt-0/meta-0") == {}
        for data in (b"{}", b'{"a": 1}'):
            store.write_small(name, data)
            assert store.read_small(name) == data
        (path,) = store.names(".edl-ckpt-0/meta-0").items()
        assert path == ("77.json", store.path(name))
        store.remove(name)
        store.remove(name)
        assert store.read_small(name) is None
        assert [v.version for v in list_versions(self.location).versions] == [9, 20, 100]

    def test_commands(self, tmp_path: Path) -> None:
        """A version is verified and resharded from here to the local disk, with one fingerprint."""
        version = resolve(parse_ref(self.location))
        found = verify_version(version, level="deep")
        assert found.ok
        result = reshard_version(version, 3, output=str(tmp_path / "out"))
        assert result.fingerprint == found.fingerprint

    def test_writing(self) -> None:
        """Reshard in place and beside, copies, notes and a prune: one fingerprint, verified, nothing left over."""
        other = f"{self.location}-other"
        version = resolve(parse_ref(f"{self.location}@20"))
        text = verify_version(version, level="deep").fingerprint
        set_metrics(version, {"auc": 0.5})
        add_tag(version, "good")
        set_note(version, "words")
        store_policy(self.location, Policy((Latest(3),)))
        assert reshard_version(version, 5).fingerprint == text
        version = resolve(parse_ref(f"{self.location}@good"))
        assert (version.ps_num, version.metrics, version.note) == (5, {"auc": 0.5}, "words")
        assert reshard_version(version, 3, output=other).fingerprint == text
        with pytest.raises(RefusedError):
            prepare_reshard(version, 3, output=other)
        assert execute_copy(plan_copy([version], f"{other}2")).copied[0].fingerprint == text
        for place in (self.location, other, f"{other}2"):
            held = resolve(parse_ref(f"{place}@20"))
            check = verify_version(held, level="deep")
            assert (check.fingerprint, check.sealed, check.findings, held.tags) == (text, True, (), ("good",))
            assert recover(place).done == ()
        assert read_policy(self.location) == Policy((Latest(3),))
        assert len(prune([self.location], Policy((Latest(1),)), now=1e10).deleted) == 1
        assert [v.version for v in list_versions(self.location).versions] == [20, 100]

    def test_shards_without_bytes(self) -> None:
        """Shards of version 0 that have no bytes are written, read back, resharded and copied."""
        place = f"{self.location}-empty"
        saved = save_checkpoint(place, 0, 4, variables={"w": np.ones(3, np.float32)}, tables={})
        assert sorted(shard.size_bytes for shard in saved.shards)[:3] == [0, 0, 0]
        text = verify_version(saved, level="deep").fingerprint
        assert reshard_version(saved, 3).fingerprint == text
        version = resolve(parse_ref(f"{place}@0"))
        execute_copy(plan_copy([version], f"{place}2"))
        for written in (version, resolve(parse_ref(f"{place}2@0"))):
            check = verify_version(written, level="deep")
            assert (check.fingerprint, check.sealed, check.findings) == (text, True, ())
            assert sorted(shard.size_bytes for shard in written.shards)[:2] == [0, 0]


class RemoteContract(Contract):
    """What every store without rename must do besides."""

    def begin(self, size_bytes: int) -> tuple[ObjectStore, ObjectWriter]:
        """Return the store and an object that was begun on it."""
        store = open_store(self.location)
        assert not isinstance(store, LocalStore)
        item = store.new_object("new/object", size_bytes)
        item.begin()
        return store, item

    @pytest.mark.parametrize("size", [0, 1, 5 << 20, (5 << 20) + 1, 11 << 20])
    def test_new_object(self, size: int) -> None:
        """A file is written in any order, is not there before it is completed, and is whole then."""
        store, item = self.begin(size)
        data = bytes(range(256)) * (size // 256 + 1)
        steps = [(at, min(999_983, size - at)) for at in range(0, size, 999_983)]
        for at, count in (*steps[1::2], *steps[::2]):
            item.write(at, memoryview(data)[at : at + count])
        assert store.stat("new/object") is None
        item.finish()
        item.complete()
        with store.open(f"{store.location}/new/object") as reader:
            assert reader.size_bytes == size
            assert reader.read(0, size) == data[:size]
        assert store.tree("new") == ["new/object"]
        store.remove_many(["new/object", "new/none"])
        assert store.tree("new") == []

    def test_never_over_another(self) -> None:
        """A name that was taken meanwhile is refused, and what took it stays; it is replaced only when that is said."""
        store, item = self.begin(3)
        store.write_small("new/object", b"theirs")
        item.write(0, b"abc")
        item.finish()
        with pytest.raises(RefusedError):
            item.complete()
        assert store.read_small("new/object") == b"theirs"
        item.complete(replace=True)
        assert store.read_small("new/object") == b"abc"

    def test_not_every_byte(self) -> None:
        """An object that lacks a byte is not finished; dropped, it leaves nothing."""
        store, item = self.begin(6 << 20)
        item.write(0, bytes(5 << 20))
        item.write((5 << 20) + 1, b"x")
        with pytest.raises(EdlCkptError, match="not every byte"):
            item.finish()
        item.abort()
        assert store.tree("new") == []
