"""A torch archive's structure without torch: its pickle read by an interpreter that can import nothing.

``torch.save`` writes a zip: ``NAME/data.pkl`` describes the objects, each storage
is a stored member ``NAME/data/KEY``. Tensors come out as ``TensorInfo``; a class
that is not part of describing tensors comes out as ``Opaque`` with its name.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from eagle3_core.errors import Eagle3Error
from eagle3_core.files import DAMAGED, reason
from eagle3_core.inspect.headers import ITEM_BYTES, Header, TensorInfo

PICKLE_LIMIT = 64 << 20
DIRECTORY_LIMIT = 16 << 20
_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8", "Float8_e4m3fnStorage": "float8_e4m3fn",
    "Float8_e5m2Storage": "float8_e5m2",
}


@dataclass(frozen=True, slots=True)
class _Name:
    """A storage type or dtype, by its own name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str
    numel: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    plain: bool


class Opaque:
    """Stands for an object of a class that is not read. Takes anything, does nothing."""

    kind = "object"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)


def _whole(values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > 16 or any(
            isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < 1 << 60 for v in values):
        raise pickle.UnpicklingError("a tensor without a proper shape")
    return tuple(values)


def _tensor(storage: Any = None, offset: Any = 0, shape: Any = (), stride: Any = (), *rest: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    sizes, steps = _whole(shape), _whole(stride)
    (start,) = _whole((offset,))
    wanted, run = [], 1
    for size in reversed(sizes):
        wanted.append(run)
        run *= size
    plain = all(step == want or size == 1 for step, want, size in zip(steps, reversed(wanted), sizes, strict=False))
    dtype = next((r.name for r in rest if isinstance(r, _Name)), storage.dtype)
    width = ITEM_BYTES.get(dtype, 1)
    return _Tensor(storage, dtype, start * width, sizes, plain and len(steps) == len(sizes))


def _parameter(tensor: Any = None, *rest: Any) -> Any:
    return tensor


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): lambda: collections.OrderedDict(),
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
}


_PYTHON: Any = vars(pickle)["_Unpickler"]


class _Reader(_PYTHON):
    """pickle's own interpreter in Python, whose memo cannot be made to allocate; nothing is imported."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PYTHON.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _Name(_STORAGES[name])
        if module == "torch" and name in ITEM_BYTES:
            return _Name(name)
        return type("Opaque", (Opaque,), {"kind": f"{module}.{name}"[:120]})

    def persistent_load(self, pid: Any) -> _Storage:
        if (not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], _Name)
                or not isinstance(pid[2], str)):
            raise pickle.UnpicklingError("a storage that is not torch's")
        return _Storage(pid[1].name, pid[2], _whole((pid[4],))[0])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_key(key)] = value

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({_key(k): v for k, v in zip(items[::2], items[1::2], strict=True)})

    def load_build(self) -> None:
        # State would overwrite what was checked; a state_dict's own is its version notes.
        self.stack.pop()

    def load_frozenset(self) -> None:
        self.pop_mark()
        self.append(Opaque())

    def load_empty_set(self) -> None:
        self.append(_Bag())

    def load_additems(self) -> None:
        self.pop_mark()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.EMPTY_SET[0]] = load_empty_set
    dispatch[pickle.ADDITEMS[0]] = load_additems


class _Bag(Opaque):
    kind = "set"


def _key(key: Any) -> Any:
    """Only plain keys: the hash of tuples nested in tuples could take for ever."""
    if isinstance(key, (str, int, float, bytes, type(None))):
        return key
    raise pickle.UnpicklingError("a dictionary with other keys than names and numbers")


def read_torch(path: Path) -> Header:
    """Raises Eagle3Error for anything but torch's zip format, naming what is wrong with it."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            members = {item.filename: item for item in archive.infolist()}
            found = [name for name in members if name.endswith("/data.pkl")]
            if len(found) != 1:
                raise Eagle3Error("is not a torch file", where=path, found=f"{len(found)} data.pkl in the archive")
            item = members[found[0]]
            if item.file_size > PICKLE_LIMIT or item.file_size > 200 * max(item.compress_size, 1 << 10):
                raise Eagle3Error("unpacks to more than a description of tensors", where=path,
                                  found=f"{item.file_size:,} bytes")
            root = found[0].removesuffix("data.pkl")
            value = _Reader(io.BytesIO(archive.read(item))).load()
        tensors, values = {}, {}
        for name, leaf in _leaves(value):
            if isinstance(leaf, _Tensor):
                tensors[name] = _place(name, leaf, path, members, f"{root}data/")
            else:
                values[name] = leaf
    except (*DAMAGED, zipfile.LargeZipFile) as error:
        raise Eagle3Error("is not a readable torch file", where=path, found=reason(error)) from None
    return Header(path, "torch", (path,), tensors, values)


def _check_directory(path: Path) -> None:
    """The list of members is read whole by zipfile; refuse one that no checkpoint has."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise zipfile.BadZipFile("not torch's zip format (torch 1.6 or later writes it)")
        file.seek(max(0, size - (1 << 17)))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("the archive is cut short")
    length = int.from_bytes(tail[at + 12 : at + 16], "little")
    if length == 0xFFFFFFFF and (long := tail.rfind(b"PK\x06\x06")) >= 0:
        length = int.from_bytes(tail[long + 40 : long + 48], "little")
    if length > DIRECTORY_LIMIT:
        raise zipfile.BadZipFile(f"an archive with a list of {length:,} bytes")


def _leaves(value: Any) -> list[tuple[str, Any]]:
    """Everything that is not a dictionary, by dotted name; a list is one leaf. Shared parts are walked once."""
    out: list[tuple[str, Any]] = []
    todo: list[tuple[str, Any]] = [("", value)]
    walked: set[int] = set()
    while todo:
        name, node = todo.pop()
        if isinstance(node, dict):
            if id(node) in walked:
                continue
            walked.add(id(node))
            if node and all(isinstance(key, int) for key in dict.keys(node)):
                out.append((name, node))
                continue
            for key, child in dict.items(node):
                todo.append((f"{name}.{key}" if name else str(key), child))
        elif isinstance(node, (list, tuple)) and any(isinstance(x, _Tensor) for x in node):
            if id(node) in walked:
                continue
            walked.add(id(node))
            todo += [(f"{name}.{i}" if name else str(i), child) for i, child in enumerate(node)]
        else:
            out.append((name, node))
    return out[::-1]


def _place(name: str, tensor: _Tensor, path: Path, members: dict[str, zipfile.ZipInfo], root: str) -> TensorInfo:
    width = ITEM_BYTES.get(tensor.dtype, 1)
    nbytes = math.prod(tensor.shape) * width
    member = members.get(root + tensor.storage.key)
    if member is None:
        raise Eagle3Error(f"tensor {name[:80]} has no storage", where=path)
    if tensor.plain and tensor.offset + nbytes > member.file_size:
        raise Eagle3Error(f"tensor {name[:80]} is larger than its storage", where=path, found=f"{nbytes:,} bytes",
                          expected=f"at most {member.file_size:,}")
    start = None
    if tensor.plain and member.compress_type == zipfile.ZIP_STORED:
        with path.open("rb") as file:
            file.seek(member.header_offset)
            local = file.read(30)
        skip = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        start = member.header_offset + 30 + skip + tensor.offset
    return TensorInfo(name or "tensor", tensor.dtype, tensor.shape, path, start, nbytes)
