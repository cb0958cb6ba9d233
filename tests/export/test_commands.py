"""Launch commands: shell that a shell accepts, with the K, tree, TP and D decided, in the consumer's own flags."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from eagle3_core.export.commands import launch_commands
from eagle3_core.export.configs import CONSUMERS
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import resolve_target

QWEN = resolve_target("qwen3-8b")
DRAFTER = drafter_for(QWEN, 16_384)


def words(script: str) -> list[str]:
    """The last command of a script, as the shell splits it; comments left out."""
    return shlex.split(script.replace("\\\n", " "), comments=True)[2:]


def option(script: str, name: str) -> str:
    found = words(script)
    return found[found.index(name) + 1]


@pytest.mark.parametrize("name", ["org/Model-8B", "a name; touch ran", "$(touch ran)", "it's"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_shell_accepts_every_script_and_a_name_runs_nothing(consumer: str, name: str, tmp_path: Path) -> None:
    target = dataclasses.replace(QWEN, name=name)
    for file, text in launch_commands(consumer, target, DRAFTER, k=3).items():
        if not file.endswith(".sh"):
            continue
        assert subprocess.run(["sh", "-n"], input=text.encode(), check=False).returncode == 0
        # With every program replaced by a printer of its arguments the name arrives whole.
        fake = "".join(f"{tool}() {{ printf '%s\\n' \"$@\"; }}\n" for tool in
                       ("python", "vllm", "specforge", "speculators", "deepspeed"))
        shown = subprocess.run(["sh", "-c", fake + text.removeprefix("#!/bin/sh\n"), "sh", "DRAFT"], cwd=tmp_path,
                               capture_output=True, text=True, check=True).stdout.splitlines()
        if consumer != "specforge":  # It names its target in run.yaml.
            assert any(line.endswith(name) for line in shown), shown
    assert not (tmp_path / "ran").exists()


def test_sglang_gets_steps_topk_and_draft_tokens_together() -> None:
    chain = launch_commands("sglang", QWEN, DRAFTER, k=5, target_tp=4)["serve.sh"]
    # All three or none: SGLang stops when steps are missing beside another.
    assert [option(chain, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")] == [
        "5", "1", "6"]
    assert option(chain, "--tp") == "4"
    assert option(chain, "--speculative-algorithm") == "EAGLE3"
    tree = launch_commands("sglang", QWEN, DRAFTER, k=4, topk=8, draft_tokens=32)["serve.sh"]
    assert [option(tree, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")] == [
        "4", "8", "32"]
    assert "--speculative-token-map" not in tree  # EAGLE-3 ignores it


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (8, 8), (4, 1)])
def test_vllm_gets_a_json_it_can_read(asked: int, given: int) -> None:
    script = launch_commands("vllm", QWEN, DRAFTER, k=4, draft_tp=asked, target_tp=8)["serve.sh"]
    run = 'vllm() { printf "%s\\n" "$@"; }\n' + script.removeprefix("#!/bin/sh\n")
    lines = subprocess.run(["sh", "-c", run, "sh", "path to/draft"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    config = json.loads(lines[lines.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "model": "path to/draft", "num_speculative_tokens": 4,
                      "draft_tensor_parallel_size": given}
    assert ("4 was asked for" in script) == (asked == 4)


def test_specforge_config_has_one_source_of_data_and_the_mapping() -> None:
    files = launch_commands("specforge", QWEN, DRAFTER, k=3)
    config = yaml.safe_load(files["run.yaml"])
    assert config["model"]["vocab_mapping_path"] == "vocab_mapping.pt"
    assert config["model"]["target_model_path"] == QWEN.name
    # Exactly one of the three is allowed.
    assert len({"train_data_path", "prompts_path", "hidden_states_path"} & set(config["data"])) == 1
    assert config["training"]["strategy"] == "eagle3"
    assert set(config) <= {"model", "data", "training", "tracking", "profiling", "runtime", "deployment", "run_id",
                           "output_dir"}
    assert words(files["train.sh"]) == ["specforge", "train", "--config", "run.yaml"]


def test_speculators_gets_both_files_of_the_mapping_or_neither() -> None:
    part = launch_commands("speculators", QWEN, DRAFTER, k=3)["train.sh"]
    assert option(part, "--d2t-path") == "d2t-16384.npy"
    assert option(part, "--t2d-path") == "t2d-16384.npy"
    assert option(part, "--draft-vocab-size") == "16384"
    full = launch_commands("speculators", QWEN, drafter_for(QWEN, 151_936), k=3)["train.sh"]
    assert not {"--d2t-path", "--t2d-path", "--draft-vocab-size"} & set(words(full))


def test_modelopt_gets_its_cache_only_below_v() -> None:
    part = yaml.safe_load(launch_commands("modelopt", QWEN, DRAFTER, k=3)["eagle3.yaml"])
    assert part["eagle"]["eagle_architecture_config"]["draft_vocab_size"] == 16_384
    assert part["data"]["draft_vocab_cache"] == "d2t.pt"
    full = yaml.safe_load(launch_commands("modelopt", QWEN, drafter_for(QWEN, 151_936), k=3)["eagle3.yaml"])
    assert "data" not in full
