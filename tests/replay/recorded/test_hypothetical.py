"""Combinations: with an empty proposer the proposer alone; else against vLLM's own proposers, combined here again."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records
from upstream import FAR, Suffix, logged, ngram, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.exactness import label
from replay.recorded.suffix_look import suffix_look
from replay.recorded.walk import NO_LIMIT, NO_MATCH, PROPOSED, Limits, walk
from replay.requests import Requests
from schemas.config import parse
from schemas.errors import InputError
from schemas.speculative import effective

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_tree_depth": 8}
DRAFT = Path(__file__).parents[3] / "examples" / "models" / "draft"
COLUMNS = "request step drafted filler accepted overrun miss_reason".split()

traces = st.lists(records(), min_size=1, max_size=4)


def replayed(trace, config, **more):
    return replay_recorded(Requests.from_lists(*zip(*trace, strict=True)), config, **more)


def combination(*of, **more):
    return {"method": "hypothetical", "of": list(of)} | more


def assert_equal(one, other):
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name


@settings(max_examples=40)
@given(traces, st.sampled_from([NGRAM, SUFFIX]), st.sampled_from(["first", "longest"]), st.booleans(), st.booleans())
def test_with_an_empty_proposer_it_is_the_proposer(trace, solo, combine, behind, limited):
    limit = max(len(prompt) + len(output) for prompt, output, _ in trace) + 2 if limited else None
    of = ({}, solo) if behind else (solo, {})
    combined = replayed(trace, combination(*of, combine=combine), max_model_len=limit)
    assert_equal(combined, replayed(trace, solo, max_model_len=limit))


def test_an_empty_proposer_alone_proposes_nothing():
    log = replayed([([1, 2, 1], [2, 1, 2, 1], [])], combination({}))
    assert len(log) == 3 and log.drafted.sum() == 0


def oracle(find, trace, of, combine="first", adaptive=False, cool_down=0):
    """Rows per request: vLLM's own proposers, asked at every step, and the rules of a combination."""
    k = max(config["num_speculative_tokens"] for config in of)
    suffix = {i: Suffix(effective(config)) for i, config in enumerate(of) if config["method"] == "suffix"}
    out = []
    for number, record in enumerate(trace):
        asked = [
            suffix[i].of(number, record[0])
            if i in suffix
            else ngram(find, c["prompt_lookup_min"], c["prompt_lookup_max"], c["num_speculative_tokens"])
            for i, c in enumerate(of)
        ]
        state = {"last": 0, "length": k, "wait": 0}

        def propose(tokens, sampled, asked=asked, state=state):
            found = [list(one(tokens, sampled)) for one in asked]
            if state["last"]:
                accepted = len(sampled) - 1
                grow = accepted == state["last"]
                state["length"] = min(k, state["length"] + 2) if grow else max(1, state["length"] - 1)
                state["wait"] = cool_down if accepted == 0 else 0
            elif state["wait"]:
                state["wait"] -= 1
            if state["wait"]:
                state["last"] = 0
                return []
            found = [ids for ids in found if ids] or [[]]
            best = found[0] if combine == "first" else max(found, key=len)
            best = best[: state["length"]] if adaptive else best
            state["last"] = len(best)
            return best

        out.append(serve(*record, k, propose, FAR))
    return out


@settings(max_examples=60)
@given(
    traces,
    st.permutations([NGRAM, SUFFIX]),
    st.sampled_from(["first", "longest"]),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
)
def test_every_step(find, trace, of, combine, adaptive, cool_down):
    more = dict(combine=combine, adaptive=adaptive, cool_down=cool_down)
    log = replayed(trace, combination(*of, **more))
    assert [logged(log, i) for i in range(len(trace))] == oracle(find, trace, of, **more)


def arctic_look(config, max_model_len):
    """`suffix_look`'s two functions over arctic-inference's own cache, the calls as vLLM's proposer makes them."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    depth = config["suffix_decoding_max_tree_depth"]
    cache = SuffixDecodingCache(depth, config["suffix_decoding_max_cached_requests"])

    def ingest(sequence, old, new):
        if sequence.index not in cache.active_requests:
            for finished in list(cache.active_requests):
                cache.stop_request(finished)
            cache.start_request(sequence.index, sequence.ids[: sequence.start])
        cache.add_active_response(sequence.index, sequence.ids[old:new])

    def look(sequence, history):
        most = min(config["num_speculative_tokens"], max_model_len - history - 1)
        if most <= 0:
            return 0, 0, 0, 0.0
        draft = cache.speculate(
            sequence.index,
            sequence.ids[max(0, history - depth) : history],
            max_spec_tokens=most,
            max_spec_factor=config["suffix_decoding_max_spec_factor"],
            min_token_prob=config["suffix_decoding_min_token_prob"],
        )
        record, hit = sequence.ids[history:].tolist(), 0
        while hit < min(len(draft.token_ids), len(record)) and draft.token_ids[hit] == record[hit]:
            hit += 1
        return len(draft.token_ids), hit, draft.match_len if draft.token_ids else 0, draft.score

    return look, ingest


def compared(trace, config, strides, limited=False):
    """Both looks at every step of one walk, whose rounds may end short of what suffix alone would reach.

    `strides`: most candidates kept at a step, taken in turn: another proposer's word, or none. Returns the looks.
    """
    requests, config = Requests.from_lists(*zip(*trace, strict=True)), effective({"method": "suffix"} | config)
    limit = max(len(prompt) + len(output) for prompt, output, _ in trace) if limited else NO_LIMIT
    look, ingest = suffix_look(requests, config, limit)
    expected_look, expected_ingest = arctic_look(config, limit)
    looks = []

    def both(sequence, history):
        found, expected = look(sequence, history), expected_look(sequence, history)
        assert found == expected, (sequence.index, history)
        looks.append(found)
        kept = min(found[0], strides[len(looks) % len(strides)])
        return kept, min(found[1], kept), NO_MATCH

    def feed(sequence, old, new):
        ingest(sequence, old, new)
        expected_ingest(sequence, old, new)

    walk(requests, config["num_speculative_tokens"], Limits(limit, limit), both, feed)
    return looks


@settings(max_examples=150)
@given(
    st.lists(records(), min_size=1, max_size=8),
    st.sampled_from([1, 2, 5, 8, 24]),
    st.sampled_from([0, 1, 3, 10000]),
    st.sampled_from([1, 6, 40]),
    st.sampled_from([0.4, 1.0, 3.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.booleans(),
)
def test_every_look_is_arctics(trace, depth, cached, k, factor, prob, strides, limited):
    """Candidates, agreement, matched context and score to the last bit, whatever else the walk takes."""
    pytest.importorskip("arctic_inference")
    names = "num_speculative_tokens", "max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob"
    keys = [names[0], *(f"suffix_decoding_{name}" for name in names[1:])]
    compared(trace, dict(zip(keys, (k, depth, cached, factor, prob), strict=True)), strides, limited)


def test_every_look_is_arctics_on_sessions():
    """Prompts that hold the whole session so far, and requests that quote each other, as in real traffic."""
    pytest.importorskip("arctic_inference")
    random = np.random.default_rng(5)
    pieces = [random.integers(0, 2048, int(n)).tolist() for n in random.integers(5, 40, 30)]

    def text(n):
        return [token for i in random.integers(0, len(pieces), n) for token in pieces[i]]

    trace = []
    for _ in range(6):
        session = text(8)
        for _ in range(5):
            said = text(3) + random.integers(0, 2048, 5).tolist()
            trace.append((list(session), said, []))
            session += said + text(2)
    for cached in (4, 10000):
        looks = compared(trace, {"suffix_decoding_max_cached_requests": cached}, [24, 24, 0, 5])
        assert sum(found[0] > 0 for found in looks) > 200


@settings(max_examples=40)
@given(traces, st.sampled_from([0, 2, 4]), st.sampled_from([0, 0.7, 2.0]))
def test_floors_are_on_arctics_match_and_score(trace, shortest, least):
    pytest.importorskip("arctic_inference")
    requests = Requests.from_lists(*zip(*trace, strict=True))
    find, ingest = arctic_look(effective(SUFFIX), NO_LIMIT)

    def look(sequence, history):
        proposed, matched, context, score = find(sequence, history)
        return (
            (proposed, matched, PROPOSED) if proposed and context >= shortest and score >= least else (0, 0, NO_MATCH)
        )

    expected = walk(requests, SUFFIX["num_speculative_tokens"], Limits(), look, ingest)
    assert_equal(replayed(trace, combination(SUFFIX, min_match_length=shortest, min_score=least)), expected)


def test_without_arctic_inference(monkeypatch):
    trace = [([1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 2, 3], [])]
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    assert replayed(trace, combination(NGRAM, SUFFIX)).accepted.sum() > 0


@settings(max_examples=30)
@given(traces)
def test_a_floor_on_the_match_is_a_longer_shortest_window(trace):
    floored = replayed(trace, combination(NGRAM, min_match_length=3))
    longer = replayed(trace, NGRAM | {"prompt_lookup_min": 3})
    for name in COLUMNS[:-1]:
        assert getattr(floored, name).tolist() == getattr(longer, name).tolist()
    assert replayed(trace, combination(NGRAM, min_match_length=9)).drafted.sum() == 0


def test_a_floor_on_the_score_takes_away_the_short_guesses():
    random = np.random.default_rng(0)
    whole = (random.integers(0, 3, 400) * (random.random(400) < 0.5)).tolist()
    trace = [(whole[:100], whole[100:], [])]
    found = [replayed(trace, combination(SUFFIX, min_score=floor)) for floor in (0, 1.0, 2.5, 9.0)]
    rounds = [int((log.drafted > 0).sum()) for log in found]
    assert rounds[0] > rounds[1] > rounds[2] > rounds[3] == 0
    # A draft's score is the sum of at most 1 per candidate, so no shorter one is left.
    assert found[1].drafted[found[1].drafted > 0].min() >= 1 and found[2].drafted[found[2].drafted > 0].min() >= 3


def test_lookup_first_else_the_draft_model():
    """At each step the n-gram's candidates where there are any, else the draft's k."""
    pytest.importorskip("torch")
    random = np.random.default_rng(3)
    piece = random.integers(300, 400, 30).tolist()
    draft = {"model": str(DRAFT), "num_speculative_tokens": 3}
    trace = [(piece + [7] + piece[:9], piece[9:25] + random.integers(0, 2048, 20).tolist(), [])]
    assert_equal(replayed(trace, combination(draft, {})), replayed(trace, draft))
    both = replayed(trace, combination(NGRAM, draft))
    alone = replayed(trace, NGRAM)
    assert (both.drafted > 0).all() and (alone.drafted == 0).any()  # a draft model always proposes
    assert both.accepted.sum() >= alone.accepted.sum() > 0
    longest = replayed(trace, combination(NGRAM, draft, combine="longest"))
    assert longest.drafted.min() >= 3


def test_it_is_called_hypothetical():
    requests = Requests.from_lists([[1, 2, 1]], [[2, 1]])
    kind, reason = label(requests, effective(combination(NGRAM, SUFFIX)), target=None, concurrency=8)
    assert kind == "hypothetical" and reason.startswith("no engine offers this combination") and "interleave" in reason


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"combine": "best", "of": [SUFFIX]}, "combine = 'best' must be"),
        ({"of": []}, "needs of = a list"),
        ({"of": SUFFIX}, "needs of = a list"),
        ({"of": [NGRAM | {"num_speculative_tokens": [2, 3]}]}, "a list is no grid inside a combination"),
        ({"of": [SUFFIX, {"method": "eagle", "model": "m"}]}, "takes ngram, suffix or draft_model, not 'eagle'"),
        ({"of": [SUFFIX, {"method": "ngram"}]}, "proposer 2 in `of`: needs num_speculative_tokens"),
        ({"of": [NGRAM], "min_score": 1.0}, "min_score = 1.0 is a floor for suffix"),
        ({"of": [{}], "min_match_length": 1}, "is a floor for ngram or suffix"),
        ({"of": [SUFFIX], "cool_down": -1}, "cool_down = -1 must be a whole number"),
        ({"of": [SUFFIX], "cool_down": True}, "cool_down = True must be"),
        ({"of": [SUFFIX], "adaptive": 1}, "adaptive = 1 must be true or false"),
        ({"of": [SUFFIX], "min_score": float("nan")}, "min_score = nan must be"),
        ({"of": [SUFFIX], "cooldown": 1}, "did you mean 'cool_down'"),
        ({"of": [SUFFIX], "num_speculative_tokens": 3}, "belongs to the proposers in `of`"),
        ("first", "must be a table"),
    ],
)
def test_what_cannot_be_combined_is_one_line(given, says):
    with pytest.raises(InputError) as error:
        parse({"proposer": [{"name": "mix", "hypothetical": given}]}, Path("replay.toml"))
    assert says in str(error.value) and "\n" not in str(error.value) and "'mix'" in str(error.value)


def test_a_list_is_a_grid_but_the_list_of_proposers():
    given = {"of": [NGRAM, SUFFIX], "combine": ["first", "longest"], "cool_down": [0, 2]}
    found = parse({"proposer": [{"name": "mix", "hypothetical": given}]}, Path("replay.toml")).proposer
    assert [(p.config["combine"], p.config["cool_down"]) for p in found] == [
        ("first", 0), ("first", 2), ("longest", 0), ("longest", 2),
    ]  # fmt: skip
    assert found[3].name == "mix · longest of ngram 2-4 k4 + suffix d8 k6, cool_down 2 (hypothetical)"
    assert all(len(p.config["of"]) == 2 for p in found) and len({p.key for p in found}) == 4


def test_a_window_too_long_for_the_index_is_one_line():
    with pytest.raises(InputError, match="prompt_lookup_max = 200000 is above"):
        replayed([([1], [2, 3], [])], combination(NGRAM | {"prompt_lookup_max": 200_000}))


def test_only_recorded_and_only_by_its_own_key():
    mix = {"name": "mix", "hypothetical": {"of": [NGRAM, SUFFIX], "cool_down": 2}}
    (proposer,) = parse({"proposer": [mix]}, Path("replay.toml")).proposer
    assert (
        proposer.name == "mix (hypothetical)"
        and proposer.method == "hypothetical"
        and effective(proposer.config) == proposer.config
    )
    (unnamed,) = parse({"proposer": [{"hypothetical": mix["hypothetical"]}]}, Path("replay.toml")).proposer
    assert (
        unnamed.name == "first of ngram 2-4 k4 + suffix d8 k6, cool_down 2 (hypothetical)"
        and unnamed.key == proposer.key
    )
    (other,) = parse({"proposer": [{"hypothetical": {"of": [SUFFIX, NGRAM]}}]}, Path("replay.toml")).proposer
    assert other.key != proposer.key
    with pytest.raises(InputError, match="no engine offers a hypothetical combination"):
        parse({"engine": {"kind": "vllm"}, "proposer": [mix]}, Path("replay.toml"))
    with pytest.raises(InputError, match="write a combination as hypothetical ="):
        parse({"proposer": [{"config": combination(NGRAM)}]}, Path("replay.toml"))
    with pytest.raises(InputError, match="has config and hypothetical"):
        parse({"proposer": [mix | {"config": NGRAM}]}, Path("replay.toml"))
    with pytest.raises(InputError, match="takes n-gram lookup by the rule of"):
        replayed([([1], [2, 3], [])], combination(NGRAM), runner="v2")
