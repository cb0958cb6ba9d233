"""``inspect_path``: from a checkpoint folder, a file, a mapping or a run directory to ``Facts``.

    run directories   ours (run.json), SpecForge (<run>-step<N>/, epoch_<e>_step_<s>/), speculators
                      (run.yaml or train_command.txt beside <epoch>/), EAGLE (state_<epoch>/)
    checkpoints       config.json beside safetensors, shards, a torch file or a GGUF
    mappings          .pt, .npy pairs, safetensors or GGUF holding d2t
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_core.drafter.checkpoint import canonical_key
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_bytes, read_json
from eagle3_core.inspect.facts import NAMES, Facts, MappingFacts, Run, Serving
from eagle3_core.inspect.headers import ARRAY_LIMIT, Header, TensorInfo, find_weights, inside, read_array, read_header
from eagle3_core.specs.target import TargetSpec

CONFIG_LIMIT = 4 << 20
_GGUF = {
    "token_embd": "embed_tokens", "output": "lm_head", "output_norm": "norm",
    "blk.0.attn_q": "midlayer.self_attn.q_proj",
    "blk.0.attn_k": "midlayer.self_attn.k_proj", "blk.0.attn_v": "midlayer.self_attn.v_proj",
    "blk.0.attn_output": "midlayer.self_attn.o_proj", "blk.0.ffn_gate": "midlayer.mlp.gate_proj",
    "blk.0.ffn_up": "midlayer.mlp.up_proj", "blk.0.ffn_down": "midlayer.mlp.down_proj",
    "blk.0.attn_norm": "midlayer.input_layernorm", "blk.0.ffn_norm": "midlayer.post_attention_layernorm",
    "blk.0.hidden_norm": "midlayer.hidden_norm",
}
"""llama.cpp's names, without ``.weight``."""


def inspect_path(path: str | Path, *, target: TargetSpec | None = None) -> Facts:
    """Read headers, configs and the mapping; no other tensor. Raises Eagle3Error when nothing here is known."""
    path = Path(path)
    if path.is_dir():
        facts = _run(path) or _folder(path)
    elif path.name == "config.json":
        facts = _folder(path.parent, path.parent / "config.json")
    elif path.suffix == ".npy":
        facts = _mapping_only(path, _npy(path), "speculators")
    else:
        facts = _file(path)
    return replace(facts, path=str(path), target=target)


def _folder(folder: Path, config_only: Path | None = None) -> Facts:
    config_file = folder / "config.json"
    config = _config(config_file) if config_file.is_file() else None
    weights = None if config_only else find_weights(folder)
    header = read_header(weights) if weights else None
    serving, notes = _serving(folder, config or {}), []
    decided = any((place / "decision.json").is_file() for place in (folder, folder.parent))
    if header is None or "fc.weight" not in _named(header)[0]:
        mapping = None if config_only else _mapping_beside(folder, header)
        if config is None and mapping is None:
            if header is not None:
                return _of_header(folder, header, {}, False)
            raise Eagle3Error("holds no drafter, mapping or run that is known", where=folder,
                              expected="config.json, weights, a mapping, or a training run")
        if config is None and mapping is not None:
            return _mapping_only(folder, mapping, _mapping_project(mapping.source))
        project = _project(config or {}, {})
        return Facts(str(folder), "files", "a draft config and its mapping, no weights" if mapping else
                     "a draft config, no weights", project, config=config or {}, has_config=True, mapping=mapping,
                     serving=serving, decided=decided)
    if config is None:
        notes.append("no config.json beside the weights: heads and flags are not known")
    facts = _of_header(folder, header, config or {}, config is not None)
    mapping = facts.mapping or _mapping_beside(folder, None)
    if facts.mapping is None and mapping is not None:
        notes.append(f"the mapping lies beside the checkpoint, in {mapping.source}, not in it")
    return replace(facts, serving=serving, notes=(*facts.notes, *notes), decided=decided)


def _config(file: Path) -> dict[str, Any]:
    value = read_json(inside(file.parent, file.name), limit=CONFIG_LIMIT)
    if not isinstance(value, dict):
        raise Eagle3Error("is not a drafter's config", where=file, found=type(value).__name__, expected="an object")
    return value


def _file(path: Path) -> Facts:
    header = read_header(path)
    names = {canonical_key(k) for k in header.tensors}
    if not header.tensors and any(isinstance(v, dict) for v in header.values.values()):
        counts = next(v for v in header.values.values() if isinstance(v, dict))
        if all(isinstance(v, int) for v in counts.values()):
            return Facts(str(path), "token counts", f"token counts of speculators: {len(counts):,} ids, "
                         f"{sum(counts.values()):,} tokens", "speculators", header.container)
    if not any(n.endswith(("fc.weight", "lm_head.weight")) for n in names):
        mapping = _mapping_in(header)
        if mapping is not None:
            return _mapping_only(path, mapping, _mapping_project(path.name))
    return _of_header(path, header, {}, False)


def _of_header(path: Path, header: Header, config: dict[str, Any], has_config: bool) -> Facts:
    tensors, renamed = _named(header)
    if "fc.weight" not in tensors:
        raise Eagle3Error("is no EAGLE-3 drafter", where=path, expected="a tensor fc.weight, or a mapping d2t",
                          found=", ".join(sorted(tensors)[:5])[:160] or "no tensors")
    project = "llama.cpp" if header.container == "gguf" else _project(config, renamed)
    evidence = [f"{key}: {value}"[:160] for key, value in sorted(header.metadata.items()) if key != "format"]
    evidence += [f"{key} {header.values[key]}"[:160] for key in _TOLD if isinstance(header.values.get(key), (int, str))]
    if len(header.files) > 1:
        evidence.append(f"{len(header.files)} shards")
    what = f"an EAGLE-3 drafter in {NAMES[project]}'s layout" if project else "an EAGLE-3 drafter"
    return Facts(str(path), "checkpoint", what, project, header.container, config, has_config, tensors, renamed,
                 _mapping_in(header), evidence=(*evidence, *_config_evidence(config)))


_TOLD = ("global_step", "step", "epoch", "run_id", "strategy", "general.name", "general.architecture")


def _named(header: Header) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    tensors, renamed = {}, {}
    for key, info in header.tensors.items():
        short = key.removeprefix("draft_state_dict.").removeprefix("module.")
        base = short.removesuffix(".weight")
        name = f"{_GGUF[base]}.weight" if header.container == "gguf" and base in _GGUF else canonical_key(short)
        name = name.split(".")[-1] if name.endswith((".d2t", ".t2d")) else name
        tensors[name], renamed[name] = info, short
    return tensors, renamed


def _config_evidence(config: dict[str, Any]) -> list[str]:
    keys = ("transformers_version", "speculators_version", "_name_or_path")
    out = [f"{key} {config[key]}"[:160] for key in keys if isinstance(config.get(key), str)]
    verifier = (config.get("speculators_config") or {}).get("verifier") if isinstance(
        config.get("speculators_config"), dict) else None
    if isinstance(verifier, dict) and isinstance(verifier.get("name_or_path"), str):
        out.append(f"trained against {verifier['name_or_path']}"[:160])
    return out


def _project(config: dict[str, Any], renamed: dict[str, str]) -> str:
    names = set(renamed.values())
    kinds = config.get("architectures") if isinstance(config.get("architectures"), list) else []
    nested = config.get("eagle_config") if isinstance(config.get("eagle_config"), dict) else {}
    if "speculators_model_type" in config or "transformer_layer_config" in config or {
            "input_norm.weight", "verifier_norm.weight"} & names:
        return "speculators"
    if "eagle_aux_hidden_state_layer_ids" in config and kinds:
        return "vllm"
    if any(n.startswith("layers.0.") for n in names):
        return "modelopt" if "t2d" not in names and "embed_tokens.weight" not in names else ""
    if "LlamaForCausalLM" in (kinds or []):
        return "eagle"
    if any(n.startswith("midlayer.") for n in names) or "eagle_aux_hidden_state_layer_ids" in (nested or {}):
        return "specforge"
    return ""


_PROJECT_FILES = (("vocab_mapping_cache", "angelslim"), ("vocab_mapping", "specforge"), ("cache", "eagle"),
                  ("freq_", "sglang-map"), ("d2t-", "speculators"), ("d2t.npy", "speculators"), ("d2t.pt", "modelopt"))


def _mapping_project(name: str) -> str:
    return next((project for start, project in _PROJECT_FILES if name.startswith(start)), "")


def _mapping_only(path: Path, mapping: MappingFacts, project: str) -> Facts:
    written = f", as {NAMES[project]} writes it" if project else ""
    return Facts(str(path), "mapping", f"a draft-vocabulary mapping{written}", project, mapping=mapping)


def _mapping_in(header: Header) -> MappingFacts | None:
    """d2t and t2d as stored. A bare tensor or list is read as its file's name says (``readers.py`` has the rule)."""
    found: dict[str, TensorInfo] = {}
    for key, info in header.tensors.items():
        name = canonical_key(key.removeprefix("draft_state_dict.")).split(".")[-1]
        if name in ("d2t", "t2d"):
            found[name] = info
    name = header.path.name
    if found:
        d2t = read_array(found["d2t"]) if "d2t" in found else None
        t2d = read_array(found["t2d"]) if "t2d" in found else None
        if t2d is not None and t2d.dtype != np.bool_:
            if t2d.ndim != 1 or (t2d.size and not np.isin(t2d, (0, 1)).all()):
                raise Eagle3Error("t2d is not a mask", where=header.path, found=f"{t2d.dtype} {list(t2d.shape)}")
            t2d = t2d != 0
        form = "absolute" if header.container == "gguf" else "offsets"
        return MappingFacts(name, form, d2t, found["d2t"].dtype if "d2t" in found else "", t2d)
    if header.container != "torch":
        return None
    bare = header.tensors.get("") or header.tensors.get("selected_token_ids")
    listed = header.values.get("")
    if bare is not None and name.startswith("d2t"):
        return MappingFacts(name, "offsets", read_array(bare), bare.dtype)
    if "selected_token_ids" in header.tensors and bare is not None:
        return MappingFacts(name, "absolute", read_array(bare), bare.dtype)
    if bare is not None or isinstance(listed, list):
        from eagle3_core.vocab.formats.readers import read_mapping

        mapping = read_mapping(header.path)
        return MappingFacts(name, "absolute", mapping.target_ids, "int64")
    return None


_BESIDE = ("vocab_mapping.pt", "d2t.pt", "cache.pt", "vocab_mapping_cache.pt", "mapping.safetensors", "d2t-*.npy",
           "d2t.npy", "t2d*.npy", "vocab_mapping/*.pt", "freq_*.pt", "mapping/*.safetensors", "mapping/*.pt")


def _mapping_beside(folder: Path, header: Header | None) -> MappingFacts | None:
    if header is not None and (found := _mapping_in(header)) is not None:
        return found
    for pattern in _BESIDE:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            # speculators and SpecForge keep a map of every size they were asked for; a leftover is easily taken.
            raise Eagle3Error("holds several mappings", where=folder, found=", ".join(p.name for p in found[:4]),
                              fix="name one of them")
        for file in found:
            inside(file.parent, file.name)
            return _npy(file) if file.suffix == ".npy" else _mapping_in(read_header(file))
    return None


def _npy(path: Path) -> MappingFacts:
    kind = "d2t" if "d2t" in path.name else "t2d"
    arrays: dict[str, np.ndarray] = {}
    for name in ("d2t", "t2d"):
        file = path.with_name(path.name.replace(kind, name, 1))
        if name == kind or file.is_file():
            read_bytes(file, limit=ARRAY_LIMIT)
            from eagle3_core.vocab.formats.readers import _load_npy

            arrays[name] = _load_npy(file)
    t2d = arrays.get("t2d")
    d2t = arrays.get("d2t")
    return MappingFacts(path.name, "offsets", d2t, str(d2t.dtype) if d2t is not None else "",
                        None if t2d is None else t2d.astype(bool))


_STEPS = (re.compile(r"(?P<run>.+)-step(?P<n>\d+)$"), re.compile(r"epoch_(?P<run>\d+)_step_(?P<n>\d+)$"),
          re.compile(r"state_(?P<n>\d+)$"), re.compile(r"(?P<n>\d+)$"))


def _run(folder: Path) -> Facts | None:
    """The newest checkpoint of a training run, or None when the folder is not one."""
    if (folder / "run.json").is_file():
        from eagle3_core.training.run_folder import checkpoints

        found, project, evidence = checkpoints(folder), "eagle3", _our_evidence(folder)
    elif find_weights(folder) is not None or (folder / "config.json").is_file():
        return None
    else:
        project, found, evidence = _foreign_run(folder)
    if not project:
        return None
    names = tuple(p.name for p in found)
    for chosen in reversed(found):
        if find_weights(chosen) is None:
            continue
        facts = _folder(chosen)
        mapping = facts.mapping or _mapping_beside(folder, None)
        what = f"a training run of {NAMES[project]}; its newest checkpoint is {chosen.name}"
        return replace(facts, kind="run", what=what, run=Run(project, names, chosen.name), mapping=mapping,
                       evidence=(*evidence, *facts.evidence), project=facts.project or project)
    mapping = _mapping_beside(folder, None)
    what = f"a training run of {NAMES[project]} without a checkpoint yet"
    return Facts(str(folder), "run", what, project, mapping=mapping, run=Run(project, names, None),
                 evidence=evidence)


def _foreign_run(folder: Path) -> tuple[str, list[Path], tuple[str, ...]]:
    by_rule: list[tuple[int, int, Path]] = []
    for child in sorted(folder.iterdir()):
        if not child.is_dir() or child.is_symlink():
            continue
        for index, rule in enumerate(_STEPS):
            if match := rule.fullmatch(child.name):
                by_rule.append((index, int(match["n"][:12]), child))
                break
    command = folder / "train_command.txt"
    written_by_speculators = command.is_file() or (folder / "run.yaml").is_file()
    for index, project in ((0, "specforge"), (1, "specforge"), (2, "eagle"), (3, "speculators")):
        found = [p for i, _, p in sorted(by_rule) if i == index]
        if found and (index != 3 or written_by_speculators):
            evidence = []
            if command.is_file():
                first = read_bytes(command, limit=1 << 20).decode("utf-8", "replace").strip().splitlines()
                evidence = [f"command: {first[0][:160]}"] if first else []
            return project, found, tuple(evidence)
    return ("speculators", [], ()) if command.is_file() else ("", [], ())


def _our_evidence(folder: Path) -> tuple[str, ...]:
    run = read_json(folder / "run.json", limit=CONFIG_LIMIT)
    if not isinstance(run, dict):
        raise Eagle3Error("is not a run's record", where=folder / "run.json")
    command = run.get("command")
    said = [f"started {run.get('created', '?')} by eagle3 {run.get('tool_version', '?')}"]
    if isinstance(command, list):
        said.append("command: " + " ".join(str(c) for c in command)[:200])
    return tuple(said)


_FLAGS = {"steps": r"--speculative-num-steps[ =](\d{1,6})", "topk": r"--speculative-eagle-topk[ =](\d{1,6})",
          "draft_tokens": r"--speculative-num-draft-tokens[ =](\d{1,6})",
          "num_speculative_tokens": r"num_speculative_tokens\W{1,4}(\d{1,6})"}


def serving_in(text: str, source: str) -> Serving | None:
    """Speculation settings in a launch command; None when it has none."""
    found = {name: int(m[1]) for name, rule in _FLAGS.items() if (m := re.search(rule, text))}
    used = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    rejection = "--speculative-use-rejection-sampling" in used
    return Serving(**found, rejection_sampling=rejection, source=source) if found or rejection else None


def _serving(folder: Path, config: dict[str, Any]) -> tuple[Serving, ...]:
    out = []
    for file in sorted(folder.glob("*.sh"))[:16]:
        if file.is_file() and file.stat().st_size < 1 << 16:
            inside(folder, file.name)
            if found := serving_in(file.read_text("utf-8", "replace"), file.name):
                out.append(found)
    methods = (config.get("speculators_config") or {}).get("proposal_methods") if isinstance(
        config.get("speculators_config"), dict) else None
    if isinstance(methods, list) and methods and isinstance(methods[0], dict):
        tokens = methods[0].get("speculative_tokens")
        if isinstance(tokens, int) and not isinstance(tokens, bool):
            out.append(Serving(num_speculative_tokens=tokens, source="config.json"))
    return tuple(out)
