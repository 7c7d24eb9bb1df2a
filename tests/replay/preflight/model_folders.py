"""Model folders without weights: the demo target's tokenizer and config, changed in one thing each."""

import json
import shutil
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[3] / "examples" / "models"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def copy(folder: Path, *, of: str = "draft", without: tuple[str, ...] = (), **config: Any) -> Path:
    """A demo model's files but for the weights; `config` is added to its config.json."""
    folder.mkdir(parents=True)
    for name in FILES:
        if name not in without:
            shutil.copy(DEMO / of / name, folder / name)
    edit(folder / "config.json", lambda found: found | config)
    return folder


def edit(file: Path, change) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def vocabulary(folder: Path) -> dict[str, int]:
    """token → id as the file has it, added tokens included."""
    found = json.loads((folder / "tokenizer.json").read_text())
    return found["model"]["vocab"] | {token["content"]: token["id"] for token in found["added_tokens"]}


def by_id(folder: Path) -> dict[int, str]:
    return {id_: token for token, id_ in vocabulary(folder).items()}


def shuffled(folder: Path, ids: list[int]) -> Path:
    """Move each of `ids` to the next one's place; all must be of the ordinary vocabulary."""

    def change(found: dict) -> dict:
        words = {id_: token for token, id_ in found["model"]["vocab"].items()}
        for here, there in zip(ids, ids[1:] + ids[:1], strict=True):
            found["model"]["vocab"][words[here]] = there
        return found

    edit(folder / "tokenizer.json", change)
    return folder


def with_added(folder: Path, token: str, id_: int) -> Path:
    """One more special token."""

    def change(found: dict) -> dict:
        entry = found["added_tokens"][0] | {"content": token, "id": id_}
        found["added_tokens"] = [*found["added_tokens"], entry]
        return found

    edit(folder / "tokenizer.json", change)
    return folder
