"""Train the demo target and draft on the CPU: `python examples/models/train.py`.

Stages: tokenizer and packed data, target, two short rounds against loops in its greedy outputs, the draft, which is
distilled on the final target, and last the parallel draft, which is the draft taught to answer at mask tokens. All
lengths are in steps and all seeds are fixed.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from corpus import Tasks, split_library
from model import END_OF_TEXT, IM_END, VOCAB, Muon, build
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

HERE = Path(__file__).parent
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|mask|>",
]
IM_START, MASK = 1, 7
ANCHORS, MASKS = 64, 4  # parallel draft: histories per row, and mask tokens behind each
TOKENS_PER_STEP = 4096
WORKERS = 2
STAGES = ["target", "draft", "parallel"]
PROMPT_WEIGHT = 0.3  # prompts hold many random words; most of the loss belongs to the answers


# ---------------------------------------------------------------- tokenizer and data


def make_tokenizer(texts):
    """Byte-level BPE; indentation joins the newline before it, which makes code shorter."""
    tok = Tokenizer(models.BPE())
    pattern = r"\n+(?: +(?= ))?| +(?= )| ?[A-Za-z]+|[0-9]|_+| ?[^\sA-Za-z0-9_]+|\s+"
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=SPECIAL,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=SPECIAL,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = (HERE / "chat_template.jinja").read_text()
    return fast


class Data:
    """One split as arrays: `source` (uint16 token ids of all files) and `tasks` (lists of token ids)."""

    def __init__(self, files, tokenizer, n_tasks, seed):
        def encode(texts):
            return [e.ids for e in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]

        texts = encode([text for _, text in files])
        self.source = np.array([i for ids in texts for i in [*ids, END_OF_TEXT]], np.uint16)
        maker = Tasks(files, seed)
        samples = [maker.sample() for _ in range(n_tasks)]
        self.kinds = [kind for kind, _, _ in samples]
        self.tasks = encode([tokenizer.apply_chat_template(m, tools=t, tokenize=False) for _, m, t in samples])
        self.assistant = tokenizer.encode("assistant", add_special_tokens=False)[0]
        self.rng, self.todo = np.random.default_rng(seed), []

    def weights(self, ids):
        """Loss weight of every token: 1 in the assistant's words, PROMPT_WEIGHT elsewhere."""
        out, inside = [], False
        for i, token in enumerate(ids):
            out.append(1.0 if inside else PROMPT_WEIGHT)
            if token == IM_START:
                inside = i + 1 < len(ids) and ids[i + 1] == self.assistant
            elif token == IM_END:
                inside = False
        return out

    def task_row(self, length):
        """Whole tasks in random order; what is left of the row is source text."""
        row, weight = [], []
        while True:
            if not self.todo:
                self.todo = self.rng.permutation(len(self.tasks)).tolist()
            ids = self.tasks[self.todo.pop()]
            if len(row) + len(ids) > length:
                break
            row, weight = row + ids, weight + self.weights(ids)
        fill = self.source_row(length - len(row)).tolist()
        return row + fill, weight + [PROMPT_WEIGHT if row else 1.0] * len(fill)

    def source_row(self, length):
        start = self.rng.integers(0, len(self.source) - length)
        return self.source[start : start + length]

    def repeat_row(self, length):
        """Random spans said several times; only what can be copied has weight (feeds the copying heads)."""
        row, weight = [], []
        while len(row) < length:
            span = self.rng.integers(len(SPECIAL), VOCAB, self.rng.integers(6, 40)).tolist()
            row += span * 2
            weight += [0.0] * (len(span) + 1) + [1.0] * (len(span) - 1)
        return row[:length], weight[:length]

    def batch(self, length, task_share, repeat_share=0.0):
        """(inputs, labels, weights), each [TOKENS_PER_STEP / length, length]."""
        rows = []
        for u in self.rng.random(TOKENS_PER_STEP // length):
            if u < repeat_share:
                rows.append(self.repeat_row(length + 1))
            elif u < repeat_share + task_share:
                rows.append(self.task_row(length + 1))
            else:
                rows.append((self.source_row(length + 1).tolist(), [1.0] * (length + 1)))
        ids, weight = torch.tensor([r for r, _ in rows]), torch.tensor([w for _, w in rows])
        return ids[:, :-1], ids[:, 1:], weight[:, 1:]


# ---------------------------------------------------------------- training


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


def cross_entropy(logits, labels, weight, total=None):
    """Weighted sum over [rows, length], divided by the total weight: nats per token."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * weight.flatten()).sum() / (weight.sum() if total is None else total)


def unlikelihood(model, ids, loops):
    """Mean of -log(1 - p) over the tokens marked in loops; both arguments [rows, length]."""
    logp = logits_of(model, ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return -torch.log1p(-logp[loops[:, 1:]].exp().clamp(max=0.999)).mean()


def pick_anchors(rng, rows, length):
    """Histories to put masks behind: [rows, ANCHORS], in order, from 8 tokens on, all masks within the row."""
    return torch.from_numpy(np.sort(rng.integers(8, length - MASKS, (rows, ANCHORS)), axis=1))


def at_masks(values, anchors):
    """What `values` [rows, length, ...] hold at the masks' positions: [rows, ANCHORS * MASKS, ...]."""
    at = (anchors[..., None] + torch.arange(MASKS)).flatten(1)
    return values[torch.arange(len(values))[:, None], at]


def with_mask_logits(model, ids, anchors):
    """Logits of a row and of the masks behind its anchors, in one forward; ids [rows, length].

    A mask stands at a position from its anchor on, sees the row before the anchor and the masks between, and answers
    for the next position, as in the engine. Returns ([rows, length, vocab], [rows, ANCHORS * MASKS, vocab]).
    """
    rows, length = ids.shape
    count = anchors.shape[1] * MASKS
    place = torch.arange(length).expand(rows, -1)
    sees = torch.zeros(rows, 1, length + count, length + count, dtype=torch.bool)
    sees[..., :length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    sees[:, 0, length:, :length] = place[:, None] < anchors.repeat_interleave(MASKS, 1)[..., None]
    sees[..., length:, length:] = torch.block_diag(*[torch.ones(MASKS, MASKS).tril()] * anchors.shape[1]).bool()
    logits = model(
        input_ids=torch.cat((ids, torch.full((rows, count), MASK)), 1),
        attention_mask=sees,
        position_ids=torch.cat((place, at_masks(place, anchors)), 1),
        use_cache=False,
    ).logits
    return logits[:, :length], logits[:, length:]


@torch.no_grad()
def held_out_loss(model, batches, masks=False):
    """Nats per token on source text, on the answers of tasks, and on the copyable half of repeats.

    masks: adds, by mask and for answers only, the share of masks whose best token is the right one.
    """
    result = {}
    for name, (ids, labels, weight) in batches.items():
        result[name] = round(cross_entropy(logits_of(model, ids), labels, (weight == 1).float()).item(), 4)
    if masks:
        ids, labels, weight = batches["tasks"]
        anchors = pick_anchors(np.random.default_rng(4), *ids.shape)
        right = with_mask_logits(model, ids, anchors)[1].argmax(-1) == at_masks(labels, anchors)
        counts = (at_masks(weight, anchors) == 1).view(-1, MASKS)
        result["right_at_mask"] = [
            round(x, 3) for x in ((right.view(-1, MASKS) & counts).sum(0) / counts.sum(0)).tolist()
        ]
    return result


def train(
    model, data, held, log, stage, steps, muon_lr=0.02, adam_lr=3e-3, fall=0.6, teacher=None, rollouts=None, masks=False
):
    """Run `steps` steps of TOKENS_PER_STEP tokens; the learning rates fall to zero over the last part, `fall`.

    teacher: a model whose distribution is distilled (0.9 of the loss). rollouts: (ids, loop mask), both [n, t];
    adds an unlikelihood loss on the tokens with which the model's own outputs went on looping. masks: the loss is also
    taken at mask tokens (needs a teacher).
    """
    parameters = list(model.parameters())
    matrices = [p for k, p in model.named_parameters() if p.ndim == 2 and "embed" not in k]
    others = [p for k, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in k)]
    optimizers = [Muon(matrices, muon_lr), torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
    base = [muon_lr, adam_lr]
    # Each part of the batch on one core: operators that share cores crawl on a machine with other work.
    workers = ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,))
    start, mean = time.time(), None
    for step in range(1, steps + 1):
        done = step / steps
        scale = min(1, step / 40) * max(0.02, min(1, (1 - done) / fall))
        for optimizer, lr in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = lr * scale
        length = 512 if rollouts is None and (masks or done < 0.8) else 1024  # short rows first: they cost less
        ids, labels, weight = data.batch(length, 0.6, 0.1 if rollouts is None and done < 0.4 else 0.0)
        anchors = pick_anchors(np.random.default_rng(step), *ids.shape)
        total = weight.sum()
        parts = [x.chunk(WORKERS) for x in (ids, labels, weight, anchors)]
        if rollouts is not None:
            pick = torch.from_numpy(data.rng.integers(0, len(rollouts[0]), 8))
            parts += [rollouts[0][pick].chunk(WORKERS), rollouts[1][pick].chunk(WORKERS)]

        def gradients(part, total=total):
            ids, labels, weight, anchors, *loops = part
            logits, guesses = with_mask_logits(model, ids, anchors) if masks else (logits_of(model, ids), None)
            loss = ce = cross_entropy(logits, labels, weight, total)
            if teacher is not None:
                with torch.no_grad():
                    wanted = logits_of(teacher, ids).softmax(-1)
                distance = -(wanted * logits.log_softmax(-1)).sum(-1)
                loss = 0.1 * ce + 0.9 * (distance * weight).sum() / total
                if masks:
                    distance = -(at_masks(wanted, anchors) * guesses.log_softmax(-1)).sum(-1)
                    shares = at_masks(weight, anchors)
                    loss = 0.5 * loss + 0.5 * (distance * shares).sum() / shares.sum() / WORKERS
            if loops and loops[1].any():
                loss = loss + unlikelihood(model, *loops) / WORKERS
            return torch.autograd.grad(loss, parameters), ce.item()

        results = list(workers.map(gradients, zip(*parts, strict=True)))
        for p, *shares in zip(parameters, *(g for g, _ in results), strict=True):
            p.grad = torch.stack(shares).sum(0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        ce = sum(ce for _, ce in results)
        mean = ce if mean is None else 0.95 * mean + 0.05 * ce
        if step % 50 == 0 or step == steps:
            record = {
                "stage": stage,
                "step": step,
                "tokens": step * TOKENS_PER_STEP,
                "seconds": round(time.time() - start),
                "train_loss": round(mean, 4),
            }
            if step % 100 == 0 or step == steps:
                record["held_out"] = held_out_loss(model, held, masks)
            emit(log, **record)


def mark_loops(prompt, output, ends=(IM_END, END_OF_TEXT)):
    """True for each output token that ends a 4-gram said before: once if not in the prompt, else twice."""
    given = {tuple(prompt[i : i + 4]) for i in range(len(prompt) - 3)}
    seen, marks, line = {}, [], prompt[-3:]
    for token in output:
        line = line + [token]
        gram = tuple(line[-4:])
        said = seen.get(gram, 0)
        marks.append(said > 1 or (said == 1 and gram not in given))
        seen[gram] = said + 1
        if token in ends:
            break
    return marks + [False] * (len(output) - len(marks))


@torch.no_grad()
def roll_out(model, data, count, prompt_length=128, new=128):
    """Greedy outputs on open-ended training prompts.

    Returns (ids, loop mask), both [count, prompt_length + new], and the share of loop tokens in the outputs.
    """
    prompts = []
    kinds = {"continuation", "write", "explain", "summary"}
    open_tasks = [task for task, kind in zip(data.tasks, data.kinds, strict=True) if kind in kinds]
    while len(prompts) < count:
        if len(prompts) % 2:
            prompts.append(data.source_row(prompt_length).tolist())
        else:  # left-pad with source text so that all prompts end where the answer starts
            ids = open_tasks[data.rng.integers(0, len(open_tasks))]
            start = max(i for i, t in enumerate(ids[:-1]) if t == IM_START and ids[i + 1] == data.assistant) + 3
            prompts.append((data.source_row(prompt_length).tolist() + ids[:start])[-prompt_length:])
    rows = []
    for i in range(0, count, 32):
        x = torch.tensor(prompts[i : i + 48])
        rows.append(
            model.generate(
                x, attention_mask=torch.ones_like(x), max_new_tokens=new, do_sample=False, eos_token_id=VOCAB
            )
        )  # never stop: keeps the batch full
    ids = torch.cat(rows)
    loops = torch.zeros_like(ids, dtype=torch.bool)
    for row, mask in zip(ids.tolist(), loops, strict=True):
        mask[prompt_length:] = torch.tensor(mark_loops(row[:prompt_length], row[prompt_length:]))
    return (ids, loops), round(loops.sum().item() / (count * new), 4)


def emit(log, **record):
    """Append a record to the training log and print it."""
    log.append(record)
    print(json.dumps(record), flush=True)


def finish(model, tokenizer, held, out, log, start, masks=False):
    """Round the weights to bfloat16, in the model and on disk, and write everything an engine needs."""
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    model.float()
    emit(log, stage="saved as bfloat16", seconds=round(time.time() - start), held_out=held_out_loss(model, held, masks))
    (out / "training_log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in log))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--target-steps", type=int, default=925)
    parser.add_argument("--polish-steps", type=int, default=40, help="steps of each anti-loop round")
    parser.add_argument("--draft-steps", type=int, default=300)
    parser.add_argument("--parallel-steps", type=int, default=180)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="the others' models are in --out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    train_files, held_files = split_library()
    if "target" not in args.stages:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out / "target")
    else:
        maker = Tasks(train_files, 1)
        chat = [m["content"] for _ in range(2000) for m in maker.sample()[1]]
        tokenizer = make_tokenizer([t for _, t in train_files] + chat)
    data = Data(train_files, tokenizer, 18000, seed=2)
    held_data = Data(held_files, tokenizer, 400, seed=3)
    held = {
        "source": held_data.batch(1024, 0.0),
        "tasks": held_data.batch(1024, 1.0),
        "repeats": held_data.batch(1024, 0.0, 1.0),
    }
    print(
        len(train_files),
        "files to train on,",
        len(held_files),
        "held out;",
        len(data.source),
        "source tokens,",
        sum(map(len, data.tasks)),
        "task tokens",
        flush=True,
    )

    if "target" in args.stages:
        target = build("target")
        log, start = [], time.time()
        emit(log, stage="start", held_out=held_out_loss(target, held))
        train(target, data, held, log, "target", args.target_steps)
        for i in range(2):  # anti-loop rounds: the second sees what the first made of the loops
            rollouts, share = roll_out(target, data, 64)
            emit(log, stage=f"roll-out {i + 1}", loop_token_share=share)
            train(target, data, held, log, f"anti-loop {i + 1}", args.polish_steps, 0.006, 9e-4, 0.8, rollouts=rollouts)
        finish(target, tokenizer, held, args.out / "target", log, start)
    else:
        target = Qwen3ForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32)

    if "draft" in args.stages:
        torch.manual_seed(1)
        draft = build("draft")
        log, start = [], time.time()
        train(draft, data, held, log, "draft", args.draft_steps, teacher=target)
        finish(draft, tokenizer, held, args.out / "draft", log, start)

    if "parallel" in args.stages:
        torch.manual_seed(2)
        draft = Qwen3ForCausalLM.from_pretrained(args.out / "draft", dtype=torch.float32)
        draft.config.pard_token = MASK  # where vLLM looks for the mask's id
        log, start = [], time.time()
        emit(log, stage="start", held_out=held_out_loss(draft, held, masks=True))
        train(draft, data, held, log, "parallel", args.parallel_steps, 0.006, 2e-3, 0.8, teacher=target, masks=True)
        finish(draft, tokenizer, held, args.out / "parallel_draft", log, start, masks=True)


if __name__ == "__main__":
    main()
