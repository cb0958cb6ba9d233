from __future__ import annotations

import numpy as np
import pytest
import torch
from drafter_tiny import VOCAB, taught_drafter, tiny_drafter, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_core.acceptance.one_pass import TextFeatures, _replay, evaluate, row_order
from eagle3_core.acceptance.summarise import elasticity, points_of, record_of
from eagle3_core.drafter.generate import generate, generate_plain
from eagle3_core.drafter.model import cut
from eagle3_core.drafter.target import Target
from eagle3_core.errors import Eagle3Error

SIZES = (3, 10, 11, 40, 64)


def _document(target, ids, mask=None, domain="all", name="d"):
    ids = torch.tensor(ids)
    with torch.inference_mode():
        seen = target.forward(ids[None])
    mask = torch.ones(len(ids), dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    return TextFeatures(name, domain, ids, mask, seen.aux[0], seen.last[0])


def _brute(document, drafter, head, order, size, temperature, depth):
    """Serve a checkpoint cut to ``size`` rows, position by position: accepted, reached, forced, positions by depth."""
    have = set(drafter.target_ids.tolist())
    keep = [int(v) for v in order if int(v) in have][:size]
    rows = torch.tensor([drafter.target_ids.tolist().index(v) for v in keep])
    small = cut(drafter, rows)
    states = small.unroll(document.aux[None], document.ids[None], depth)
    target_logits = head.logits(document.last)
    length = len(document.ids)
    ids, mask = document.ids.tolist(), document.mask.tolist()
    out = np.zeros((4, depth))
    for p in range(length - 1):
        prefix, alive = 1.0, True
        for k in range(depth):
            j = p + 1 + k
            judged = j + 1 < length and mask[j] and mask[j + 1]
            if not judged:
                alive = False
                continue
            z = small.lm_head(states[k][0, p])
            x = ids[j + 1]
            if temperature == 0:
                best = int(target_logits[j].argmax())
                a = float(int(small.target_ids[z.argmax()]) == best)
                w = a * (x == best)
            else:
                target_p = torch.softmax(target_logits[j] / temperature, -1)
                q = torch.zeros_like(target_p)
                q[small.target_ids] = torch.softmax(z / temperature, -1)
                a = float(torch.minimum(target_p, q).sum())
                w = float(min(1.0, q[x] / target_p[x]))
            out[2, k] += a
            out[3, k] += 1
            if alive:
                out[0, k] += prefix * a
                out[1, k] += prefix
                prefix *= w
    return out


def _check(document, drafter, head, order, temperature, depth, sizes=SIZES):
    rows = row_order(drafter.target_ids, order, sizes)
    tally = evaluate([document], drafter, head, {"pooled": rows}, temperatures=[temperature], depth=depth, chunk=7)[0]
    for index, size in enumerate(sizes):
        accepted, reached, forced, positions = _brute(document, drafter, head, order, size, temperature, depth)
        np.testing.assert_allclose(tally.accepted[0, index], accepted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tally.reached[0, index], reached, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tally.forced[0, index], forced, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tally.positions[0], positions)


@pytest.fixture(scope="module")
def target():
    return Target(tiny_model())


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_one_pass_equals_serving_every_size_alone(target, temperature):
    generator = np.random.default_rng(0)
    ids = generate_plain(target, [7, 3, 9], max_new=25).ids
    mask = [0, 0, 0, *[1] * 10, 0, 0, *[1] * 13]
    document = _document(target, [7, 3, 9, *ids], mask)
    _check(document, tiny_drafter(), target.head, generator.permutation(VOCAB), temperature, 3)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.0, 1.0]))
def test_ties_go_to_the_lowest_target_id_as_in_an_argmax_over_a_cut_head(seed, temperature):
    """Heads of a few small integers on states of small integers: logits tie all the time, and are exact."""
    generator = torch.Generator().manual_seed(seed)
    drafter = tiny_drafter(seed=seed % 7)
    drafter.lm_head.weight.copy_(torch.randint(-1, 2, (64, 32), generator=generator).double())
    whole = torch.randint(-1, 2, (1, 14, 32), generator=generator).double()
    drafter.unroll = lambda aux, ids, steps: [whole.roll(k, 1) for k in range(steps)]
    from eagle3_core.drafter.target import TargetHead

    head = TargetHead(torch.randint(-1, 2, (VOCAB, 32), generator=generator).double())
    ids = torch.randint(0, VOCAB, (14,), generator=generator)
    document = TextFeatures("d", "all", ids, torch.ones(14, dtype=torch.bool), torch.zeros(14, 96).double(),
                            torch.randint(-1, 2, (14, 32), generator=generator).double())
    order = np.random.default_rng(seed).permutation(VOCAB)
    rows = row_order(drafter.target_ids, order, SIZES)
    tally = evaluate([document], drafter, head, {"pooled": rows}, temperatures=[temperature], depth=2, chunk=5)[0]
    z_target = head.logits(document.last)
    for index, size in enumerate(SIZES):
        keep = rows.draft_rows[:size]
        targets, by_id = drafter.target_ids[keep].sort()
        weight = drafter.lm_head.weight[keep][by_id]
        total = 0.0
        for j in range(1, 13):
            z = weight @ whole[0, j - 1]
            if temperature == 0:
                total += float(targets[z.argmax()] == z_target[j].argmax())
            else:
                q = torch.zeros(VOCAB).double().index_copy(0, targets, z.softmax(-1))
                total += float(torch.minimum(q, z_target[j].softmax(-1)).sum())
        assert tally.forced[0, index, 0] == pytest.approx(total, rel=1e-6)


def test_replayed_rounds_are_those_of_the_real_decoder_at_every_size(target):
    """Text the target wrote greedily: the one-pass figures must predict real speculative decoding exactly."""
    prompt = [5, 9, 2]
    text = generate_plain(target, prompt, max_new=60).ids
    document = _document(target, [*prompt, *text], [0] * 3 + [1] * 60)
    drafter = taught_drafter(document.aux, document.ids, steps=40)
    order = np.random.default_rng(1).permutation(VOCAB)
    order = np.concatenate([np.unique(text), np.setdiff1d(order, text)])
    rows = row_order(drafter.target_ids, order, SIZES)
    depth = 3
    tally = evaluate([document], drafter, target.head, {"pooled": rows}, depth=depth)[0]
    assert tally.agree[0] == tally.positions[0, 0]
    for index, size in enumerate(SIZES):
        small = cut(drafter, rows.draft_rows[:size])
        made = generate(target, small, prompt, max_new=60, k=depth)
        kept = sum(n * c for n, c in enumerate(made.accepted))
        if size == SIZES[-1]:
            assert 10 < kept < 50, "a drafter that is sometimes right is needed here"
        # The walk starts one token earlier than the decoder, whose first token comes with the prompt.
        assert tally.replay_reached[0, index, 0] == pytest.approx(made.rounds, abs=1)
        assert tally.replay_accepted[0, index].sum() == pytest.approx(kept, abs=depth)


def test_a_walk_counts_each_round_once_and_leaves_out_what_the_text_cannot_judge():
    # Drafts accepted from p = 0..5 at K = 2; the text judges 2, 2, 2, 2, 1, 0 of them.
    run = np.array([[2, 1, 0, 1, 1, 0]])
    judged_ahead = np.array([2, 2, 2, 2, 1, 0])
    # Rounds start at 0 (2 accepted), 3 (1 accepted, the second refused); the next start, 5, judges nothing.
    accepted, reached = _replay(run, judged_ahead, 2)
    assert accepted.tolist() == [[2, 1]]
    assert reached.tolist() == [[2, 2]]
    # A walk that reaches 4 judges one draft there: the second counts neither way.
    accepted, reached = _replay(np.array([[0, 2, 0, 0, 1, 0]]), judged_ahead, 2)
    assert accepted.tolist() == [[2, 1]]
    assert reached.tolist() == [[3, 1]]


def test_rankings_compared_in_one_run_equal_separate_runs(target):
    document = _document(target, list(np.random.default_rng(2).integers(0, VOCAB, 20)))
    drafter = tiny_drafter()
    orders = {name: row_order(drafter.target_ids, np.random.default_rng(seed).permutation(VOCAB), SIZES)
              for seed, name in enumerate(("pooled", "worst"))}
    both = evaluate([document], drafter, target.head, orders, temperatures=(0.0, 1.0), depth=2)
    assert [(t.ranking, t.temperature) for t in both] == [("pooled", 0.0), ("pooled", 1.0), ("worst", 0.0),
                                                          ("worst", 1.0)]
    alone = evaluate([document], drafter, target.head, {"worst": orders["worst"]}, temperatures=(1.0,), depth=2)[0]
    np.testing.assert_array_equal(both[3].accepted, alone.accepted)


def test_sizes_above_the_checkpoint_are_refused(target):
    with pytest.raises(Eagle3Error, match="drafter's own 64"):
        row_order(tiny_drafter().target_ids, np.arange(VOCAB), (32, 65))


def test_a_text_without_generated_tokens_is_refused(target):
    document = _document(target, [1, 2, 3], [0, 0, 1])
    rows = row_order(tiny_drafter().target_ids, np.arange(VOCAB), SIZES)
    with pytest.raises(Eagle3Error, match="no position"):
        evaluate([document], tiny_drafter(), target.head, {"pooled": rows})


def _tally(target, documents=6):
    generator = np.random.default_rng(5)
    drafter = tiny_drafter()
    texts = [_document(target, [*generator.integers(0, VOCAB, 3), *generate_plain(
        target, list(generator.integers(0, VOCAB, 3)), max_new=20).ids], domain="ab"[i % 2], name=str(i))
        for i in range(documents)]
    rows = row_order(drafter.target_ids, generator.permutation(VOCAB), SIZES)
    return evaluate(texts, drafter, target.head, {"pooled": rows}, depth=2)[0]


def test_acceptance_splits_into_kept_and_rescued_hits(target):
    """alpha(D) = alpha(D0) C_acc(D) + rescue(D), by definition of both; teacher-forced, first position."""
    tally = _tally(target)
    points = points_of(tally, np.ones(6, dtype=bool))
    full = points[-1]
    for point in points:
        kept = 0.0 if point.coverage_accepted is None else point.coverage_accepted
        assert point.teacher_forced[0] == pytest.approx(full.teacher_forced[0] * kept + point.rescue)
    assert full.rescue == 0


def test_intervals_hold_the_estimate_and_shrink_with_more_documents(target):
    tally = _tally(target)
    record = record_of(tally, target="t", drafter="d", vocab_size=VOCAB, trained_draft_vocab=64, source="s")
    assert set(record.domains) == {"a", "b"}
    assert record.documents == 6
    assert any("trained at D = 64" in note for note in record.notes)
    for point in record.points:
        assert all(lo <= a <= hi for lo, a, hi in zip(point.alpha_low, point.alpha, point.alpha_high, strict=True))
        assert point.tau == pytest.approx(1 + point.alpha[0] + point.alpha[0] * point.alpha[1])
        assert point.tau_low <= point.tau <= point.tau_high


def test_elasticity_recovers_the_power_it_was_made_with(target):
    points = points_of(_tally(target), np.ones(6, dtype=bool))
    made = tuple(p.model_copy(update={"coverage": c, "alpha": (0.8 * c**0.6, 0.5)})
                 for p, c in zip(points, (0.5, 0.7, 0.8, 0.9, 1.0), strict=True))
    assert elasticity(made) == pytest.approx(0.6)
