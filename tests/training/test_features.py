"""Reading the dumps of each project as the same documents."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from eagle3_core.errors import Eagle3Error
from eagle3_core.training.features import open_features, split_heldout

LENGTH, WIDTH = 5, 4


def tensors(index: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    return {
        "ids": torch.randint(0, 50, (LENGTH,), generator=generator),
        "mask": torch.tensor([0, 0, 1, 1, 1]),
        "aux": torch.randn(LENGTH, 3 * WIDTH, generator=generator),
        "last": torch.randn(LENGTH, WIDTH, generator=generator),
    }


def specforge(folder: Path, index: int, *, compress: bool = False) -> None:
    t = tensors(index)
    value = {"input_ids": t["ids"], "loss_mask": t["mask"], "hidden_state": t["last"][None],
             "aux_hidden_state": t["aux"][None]}
    rows = folder / "rows_0-2000"
    rows.mkdir(parents=True, exist_ok=True)
    if compress:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        with gzip.open(rows / f"data_{index}.ckpt.gz", "wb") as file:
            file.write(buffer.getvalue())
    else:
        torch.save(value, rows / f"data_{index}.ckpt")


def modelopt(folder: Path, index: int) -> None:
    folder.mkdir(exist_ok=True)
    t = tensors(index)
    torch.save({"input_ids": t["ids"], "loss_mask": t["mask"], "hidden_states": t["last"],
                "aux_hidden_states": t["aux"], "conversation_id": str(index)}, folder / f"{index}.pt")


def speculators(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    masks = []
    for index in range(count):
        t = tensors(index)
        states = torch.cat([t["aux"].view(LENGTH, 3, WIDTH), t["last"][:, None]], dim=1)
        save_file({"token_ids": t["ids"], "hidden_states": states}, folder / f"hs_{index}.safetensors")
        masks.append(t["mask"].tolist())
    table = pa.table({"loss_mask": masks})
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as w:
        w.write_table(table)


def test_every_format_gives_the_same_document(tmp_path: Path) -> None:
    specforge(tmp_path / "a", 0)
    specforge(tmp_path / "b", 0, compress=True)
    modelopt(tmp_path / "c", 0)
    speculators(tmp_path / "d", 1)
    want = tensors(0)
    for name in "abcd":
        document = open_features([tmp_path / name]).load(0)
        torch.testing.assert_close(document.ids, want["ids"])
        torch.testing.assert_close(document.mask, want["mask"].bool())
        torch.testing.assert_close(document.aux, want["aux"])
        torch.testing.assert_close(document.last, want["last"])
        # Only speculators stores the last state before the final norm.
        assert document.post_norm is (name != "d")


def test_documents_come_in_numeric_order(tmp_path: Path) -> None:
    for index in (10, 2, 1):
        specforge(tmp_path, index)
    assert [d.name for d in open_features([tmp_path])] == ["data_1.ckpt", "data_2.ckpt", "data_10.ckpt"]


def test_duplicates_never_straddle_the_split(tmp_path: Path) -> None:
    for index in range(30):
        specforge(tmp_path, index)
        torch.save(torch.load(tmp_path / "rows_0-2000" / f"data_{index}.ckpt", weights_only=True),
                   tmp_path / "rows_0-2000" / f"data_{index + 100}.ckpt")
    train, heldout = split_heldout(open_features([tmp_path]), 0.2)
    assert len(train) + len(heldout) == 60
    assert len(heldout) >= 2
    seen = {tuple(d.ids.tolist()) for d in train}
    assert not any(tuple(d.ids.tolist()) in seen for d in heldout)


def test_changed_data_changes_the_fingerprint(tmp_path: Path) -> None:
    specforge(tmp_path, 0)
    before = open_features([tmp_path]).fingerprint()
    assert open_features([tmp_path]).fingerprint() == before
    specforge(tmp_path, 1)
    assert open_features([tmp_path]).fingerprint() != before


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    specforge(tmp_path, 0)
    features = open_features([tmp_path])
    features.files[0].unlink()
    with pytest.raises(Eagle3Error, match=r"data_0\.ckpt: shard is missing"):
        features.load(0)


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("code ran",))


@pytest.mark.parametrize("content", ["empty", "text", "pickle", "no_aux", "short_mask"])
def test_a_bad_file_gives_one_line(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data_0.ckpt"
    t = tensors(0)
    good = {"input_ids": t["ids"], "loss_mask": t["mask"], "hidden_state": t["last"], "aux_hidden_state": t["aux"]}
    if content == "empty":
        file.write_bytes(b"")
    elif content == "text":
        file.write_text("not tensors")
    elif content == "pickle":
        torch.save({"input_ids": Evil()}, file)
    elif content == "no_aux":
        torch.save({k: v for k, v in good.items() if k != "aux_hidden_state"}, file)
    else:
        torch.save(good | {"loss_mask": t["mask"][:-1]}, file)
    with pytest.raises(Eagle3Error, match=r"data_0\.ckpt") as error:
        open_features([tmp_path]).load(0)
    assert "\n" not in str(error.value)
    assert "code ran" not in capsys.readouterr().out


def test_a_speculators_dump_without_masks_is_refused(tmp_path: Path) -> None:
    speculators(tmp_path, 1)
    next(tmp_path.glob("*.arrow")).unlink()
    with pytest.raises(Eagle3Error, match="loss masks"):
        open_features([tmp_path])
