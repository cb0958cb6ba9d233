"""Coverage of a given mapping by arithmetic on small counts, and two mappings row by row."""

from __future__ import annotations

import numpy as np
import pytest
from small import D, V, small

from eagle3_core.errors import Eagle3Error
from eagle3_core.inspect.coverage import coverage_of, moved_rows, size_standing
from eagle3_core.inspect.facts import Facts, MappingFacts
from eagle3_core.inspect.read import inspect_path


def mapping_facts(ids, vocab: int | None = V, *, t2d: bool = True) -> Facts:
    ids = np.asarray(ids)
    mask = np.isin(np.arange(vocab), ids) if t2d and vocab else None
    return Facts("m", "mapping", "a mapping", mapping=MappingFacts("m", "absolute", ids, "int64", mask))


def test_coverage_is_the_share_of_tokens_inside_by_domain(small_counts):
    # Ten folds each: chat 1:60, 3:30, 7:10; code 3:20, 9:80. The mapping holds 1 and 3.
    counts = small_counts(domains=("chat", "code"), by_domain=[{1: 60, 3: 30, 7: 10}, {3: 20, 9: 80}],
                          roles={7: "eos", 500: "tool_call"})
    found = coverage_of(mapping_facts([1, 3]), counts)
    assert found.tokens == 2000
    assert found.coverage == pytest.approx((90 + 20) / 200)
    assert dict(zip(found.by_domain["domain"], found.by_domain["coverage"], strict=True)) == {"chat": 0.9, "code": 0.2}
    assert (found.worst_domain, found.worst_coverage) == ("code", 0.2)
    # The best two ids are 9 (80) and 1 (60): 140 of 200, on every nine folds alike.
    assert found.best_in_sample == pytest.approx(0.7)
    assert found.best_heldout == pytest.approx(0.7)
    assert found.by_domain["best"].to_list() == [0.6, 0.8]
    assert found.lost["token_id"].to_list() == [9, 7]
    assert found.lost["share"].to_list() == [0.4, 0.05]
    assert found.forced_missing.select("token_id", "role").rows() == [(7, "eos"), (500, "tool_call")]
    assert found.unseen == 0


def test_ids_that_never_occur_are_counted(small_counts):
    assert coverage_of(mapping_facts([1, 2, 4]), small_counts(seen=[1])).unseen == 2


def test_a_full_mapping_covers_everything(small_counts):
    found = coverage_of(mapping_facts(np.arange(V)), small_counts(seen=[1, 5]))
    assert (found.coverage, found.best_heldout, found.lost.height) == (1.0, 1.0, 0)


def test_counts_of_another_vocabulary_are_refused(small_counts):
    with pytest.raises(Eagle3Error, match="another vocabulary"):
        coverage_of(mapping_facts([1, 3], 64), small_counts(seen=[1]))
    with pytest.raises(Eagle3Error, match="maps outside"):
        coverage_of(mapping_facts([1, V], None), small_counts(seen=[1]))
    with pytest.raises(Eagle3Error, match="no mapping"):
        coverage_of(Facts("c", "files", "a config"), small_counts(seen=[1]))


def test_rows_whose_meaning_moves_are_listed_with_where_they_went():
    # sgl-project/SpecForge#534: old ids [1, 3, 7], new ids [1, 4, 7]: row 1 changes meaning.
    found = moved_rows(mapping_facts([1, 3, 7], 20), mapping_facts([1, 4, 7], 20))
    assert found.rows.rows() == [(1, 3, 4, None)]
    assert (found.same, found.moved, found.lost.tolist(), found.new.tolist()) == (2, 1, [3], [4])


def test_one_new_low_id_moves_every_row_after_it():
    found = moved_rows(mapping_facts([3, 5, 7], 20), mapping_facts([1, 3, 5], 20))
    assert found.rows.rows() == [(0, 3, 1, 1), (1, 5, 3, 2), (2, 7, 5, None)]


def test_a_mapping_against_a_larger_one_and_against_itself():
    small_one, large = mapping_facts([1, 3], 20), mapping_facts([1, 3, 7], 20)
    assert moved_rows(small_one, large).moved == 0
    assert moved_rows(small_one, large).new.tolist() == [7]
    assert moved_rows(large, large).same == 3
    with pytest.raises(Eagle3Error, match="different vocabularies"):
        moved_rows(small_one, mapping_facts([1, 3], 21))
    with pytest.raises(Eagle3Error, match="no mapping"):
        moved_rows(small_one, Facts("c", "files", "a config"))


def test_a_mapping_alone_leaves_the_size_free_and_a_checkpoint_locks_it(tmp_path):
    assert size_standing(mapping_facts([1, 3], 20)).state == "free"
    standing = size_standing(inspect_path(small().write(tmp_path)))
    assert (standing.state, standing.inherited) == ("locked", True)
    assert f"D = {D}" in standing.why
