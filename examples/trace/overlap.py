"""How much one session of the demo trace shares with all others: share of its 8-grams (words) found elsewhere.

python examples/trace/overlap.py
"""

import json
from collections import Counter
from pathlib import Path


def eight_grams(session: dict, roles: tuple[str, ...]) -> set[tuple[str, ...]]:
    """All runs of 8 words within the session's messages of these roles."""
    out = set()
    for message in session["messages"]:
        if message["role"] in roles:
            words = (message.get("content") or "").split()
            out |= {tuple(words[i : i + 8]) for i in range(len(words) - 7)}
    return out


def main() -> None:
    files = sorted(Path(__file__).parent.glob("*.jsonl"))
    sessions = [(f.stem, json.loads(line)) for f in files for line in f.read_text("utf-8").splitlines()]
    for label, roles in (
        ("all messages", ("system", "user", "assistant", "tool")),
        ("without system prompts", ("user", "assistant", "tool")),
    ):
        grams = [eight_grams(s, roles) for _, s in sessions]
        owners = Counter(g for own in grams for g in own)
        shares = [sum(owners[g] > 1 for g in own) / len(own) if own else 0.0 for own in grams]
        print(f"{label}: mean {sum(shares) / len(shares):.3f}, largest {max(shares):.3f} of {len(sessions)} sessions")
        for workload in sorted({w for w, _ in sessions}):
            part = [s for s, (w, _) in zip(shares, sessions, strict=True) if w == workload]
            print(f"  {workload:20} mean {sum(part) / len(part):.3f}  largest {max(part):.3f}")


if __name__ == "__main__":
    main()
