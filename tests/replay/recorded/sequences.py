"""Token sequences that make lookups hard: few symbols, periods, copies with small edits, self-overlap."""

from hypothesis import strategies as st


@st.composite
def ids(draw, min_size=1, max_size=60):
    """A list of ids over 1 to 6 symbols (0 among them: placeholders are zeros)."""
    symbols = st.integers(0, draw(st.sampled_from([0, 1, 2, 3, 5])))
    kind = draw(st.sampled_from(["any", "period", "copy"]))
    if kind == "any":
        return draw(st.lists(symbols, min_size=min_size, max_size=max_size))
    piece = draw(st.lists(symbols, min_size=1, max_size=9))
    if kind == "period":
        return (piece * max_size)[: draw(st.integers(min_size, max_size))]
    out = (piece + draw(st.lists(symbols, max_size=4)) + piece + draw(st.lists(symbols, max_size=4)) + piece)[:max_size]
    return out if len(out) >= min_size else out + [0] * (min_size - len(out))


@st.composite
def records(draw, min_output=1):
    """(prompt, output, tail) cut from one sequence, so that the output repeats the prompt."""
    whole = draw(ids(min_size=1 + min_output, max_size=70))
    start = draw(st.integers(1, len(whole) - min_output))
    end = draw(st.integers(start + min_output, len(whole)))
    tail = whole[end:] if draw(st.booleans()) else []
    return whole[:start], whole[start:end], tail


@st.composite
def windows(draw):
    """(min_n, max_n, k)."""
    low = draw(st.integers(1, 5))
    return low, low + draw(st.integers(0, 4)), draw(st.integers(1, 9))
