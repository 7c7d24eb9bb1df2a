"""Training text for the demo models: the Python standard library and chat tasks made from it.

Everything is built from the interpreter's own library (PSF licence) plus small word templates, so
nothing is downloaded. Files are split into train / held-out by a hash of their path.
"""

import ast
import hashlib
import json
import random
import re
import sysconfig
import textwrap
from pathlib import Path

SKIP = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "encodings",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "__pycache__",
}


def library_texts():
    """Yield (relative path, text) of library sources, and of the language reference kept in pydoc."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        rel = path.relative_to(root)
        if SKIP & set(rel.parts) or rel.name.startswith("_sysconfigdata") or rel.name == "topics.py":
            continue
        try:
            text = path.read_text("utf-8").expandtabs(4)
        except UnicodeDecodeError:
            continue
        if len(text) > 1000:  # many tiny files would teach an early end of text
            yield rel.as_posix(), text
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield f"reference/{name}.txt", topics[name]


def split_library():
    """Return (train, held_out), each a list of (path, text); about one file in twenty is held out."""
    parts = [], []
    for rel, text in library_texts():
        parts[int(hashlib.sha1(rel.encode()).hexdigest(), 16) % 20 == 0].append((rel, text))
    return parts


def functions(text):
    """(name, dedented source, docstring or "") of every function in a Python source text."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            yield node.name, source, ast.get_docstring(node) or ""


def paragraphs(rel, text):
    """Prose paragraphs (lists of at least two sentences) of a reference text or of docstrings."""
    if rel.endswith(".txt"):
        docs = [text]
    else:
        try:
            nodes = ast.walk(ast.parse(text))
        except (SyntaxError, ValueError):
            return
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docs = [ast.get_docstring(n) or "" for n in nodes if isinstance(n, kinds)]
    for doc in docs:
        for block in doc.split("\n\n"):
            flat = " ".join(block.split())
            sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", flat)
            plain = re.match(r"[A-Z\"]", flat) and flat.endswith(".") and not re.search(r">>>|::|\*\*\*|---", flat)
            if plain and len(sentences) >= 2 and 80 < len(flat) < 700:
                yield sentences


PHRASES = json.loads(Path(__file__).with_name("phrases.json").read_text())  # what the chat tasks are worded with


def block(code, language="python"):
    return f"```{language}\n{code.strip(chr(10))}\n```"


class Tasks:
    """Makes chat tasks from (path, text) pairs; the same files and seed give the same tasks."""

    WEIGHTS = {
        "edit": 20,
        "config": 12,
        "extract": 15,
        "summary": 14,
        "triage": 11,
        "tool": 13,
        "continuation": 9,
        "write": 9,
        "explain": 5,
    }

    def __init__(self, files, seed):
        self.r = random.Random(seed)
        self.functions = [
            (rel, *f)
            for rel, text in files
            if rel.endswith(".py")
            for f in functions(text)
            if 80 < len(f[1]) < 900 and f[1].count("\n") >= 3
        ]
        self.paragraphs = [p for rel, text in files for p in paragraphs(rel, text)]
        self.words = sorted({w for _, text in files for w in re.findall(r"\b[a-z]{4,10}\b", text)})
        self.identifiers = sorted({f[1] for f in self.functions if len(f[1]) > 3 and f[1][0] != "_"})

    # ---- small values

    def word(self):
        return self.r.choice(self.words)

    def value(self, field):
        r, w = self.r, self.word
        if field in ("customer", "owner", "name", "reporter", "organiser"):
            return f"{w().title()} {w().title()}"
        if field in ("quantity", "port", "total", "order_id", "id"):
            return r.randint(2, 20) if field == "quantity" else r.randint(100, 99999)
        return {
            "date": lambda: f"20{r.randint(10, 30)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
            "time": lambda: f"{r.randint(8, 18)}:{r.choice(['00', '15', '30', '45'])}",
            "email": lambda: f"{w()}.{w()}@{w()}.org",
            "host": lambda: f"{w()}{r.randint(1, 40)}.{w()}.net",
            "address": lambda: ".".join(str(r.randint(1, 250)) for _ in range(4)),
            "phone": lambda: f"+{r.randint(1, 99)} {r.randint(100, 999)} {r.randint(10000, 99999)}",
            "version": lambda: ".".join(str(r.randint(0, 20)) for _ in range(3)),
            "status": lambda: r.choice(["up", "down", "degraded", "closed"]),
            "severity": lambda: r.choice(["low", "medium", "high", "critical"]),
            "title": lambda: f"{w().title()} {w()} {w()}",
            "city": lambda: w().title(),
            "path": lambda: f"/{w()}/{w()}/{w()}.{r.choice(['cfg', 'log', 'py', 'json'])}",
            "room": lambda: f"{r.choice('ABCDE')}{r.randint(1, 400)}",
        }.get(field, w)()

    def scalar(self):
        return self.r.choice(
            [
                lambda: self.r.randint(0, 5000),
                self.word,
                lambda: self.value("path"),
                lambda: self.r.choice(["true", "false"]),
                lambda: self.value("host"),
            ]
        )()

    def ask(self, request, text, answer):
        user = f"{request}\n\n{text}" if self.r.random() < 0.7 else f"{text}\n\n{request}"
        return [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]

    # ---- tasks; each returns a list of chat messages

    def edit(self):
        """Return a piece of code with one small change."""
        r = self.r
        _, name, code, _ = r.choice(self.functions)
        lines, kind = code.split("\n"), r.randrange(5)
        i = r.randrange(1, len(lines))
        line, indent = lines[i].strip(), re.match(r" *", lines[i])[0]
        numbers = re.findall(r"\b\d+\b", code)
        if kind == 0 and numbers:
            old, new = r.choice(numbers), str(r.randint(2, 999))
            request, answer = f"Change every {old} to {new}", re.sub(rf"\b{old}\b", new, code)
        elif kind == 1 and line:
            note = " ".join(self.word() for _ in range(3))
            request = f"Add the comment `# {note}` before the line `{line}`"
            answer = "\n".join(lines[:i] + [f"{indent}# {note}"] + lines[i:])
        elif kind == 2 and line:
            request, answer = f"Delete the line `{line}`", "\n".join(lines[:i] + lines[i + 1 :])
        else:
            old = name if r.random() < 0.5 else r.choice(re.findall(r"\b[a-z_]{3,}\b", code))
            new = r.choice(self.identifiers)
            request = r.choice(["Rename `{}` to `{}`", "Replace `{}` with `{}`"]).format(old, new)
            answer = re.sub(rf"\b{re.escape(old)}\b", new, code)
        ending = r.choice([" and return the whole file.", " in this code. Return the full code.", "."])
        return self.ask(request + ending, block(code), block(answer))

    def settings(self):
        """A small configuration: (language, [(key, value)], function that prints pairs)."""
        language = self.r.choice(["ini", "yaml", "json", "toml", "bash"])
        pairs = [
            (f"{a}_{self.word()}" if self.r.random() < 0.5 else a, self.scalar())
            for a in self.r.sample(self.words, self.r.randint(4, 9))
        ]
        head = self.word()

        def show(pairs):
            if language == "json":
                return json.dumps(dict(pairs), indent=2)
            if language == "yaml":
                return f"{head}:\n" + "\n".join(f"  {k}: {v}" for k, v in pairs)
            if language == "bash":
                return "\n".join(f"export {k.upper()}={v}" for k, v in pairs)
            quote = (lambda v: f'"{v}"' if isinstance(v, str) else v) if language == "toml" else str
            return f"[{head}]\n" + "\n".join(f"{k} = {quote(v)}" for k, v in pairs)

        return language, pairs, show

    def config(self):
        """Return a configuration file with one small change."""
        r = self.r
        language, pairs, show = self.settings()
        i = r.randrange(len(pairs))
        key, new = pairs[i][0], self.scalar()
        request, changed = r.choice(
            [
                (f"Set `{key}` to `{new}`", pairs[:i] + [(key, new)] + pairs[i + 1 :]),
                (f"Change {key} from {pairs[i][1]} to {new}", pairs[:i] + [(key, new)] + pairs[i + 1 :]),
                (f"Remove `{key}`", pairs[:i] + pairs[i + 1 :]),
                (f"Add `{new}_{key}` with the value 1 at the end", pairs + [(f"{new}_{key}", 1)])
                if str(new).isalpha()
                else (f"Set `{key}` to `{new}`", pairs[:i] + [(key, new)] + pairs[i + 1 :]),
            ]
        )
        request += r.choice([" and return the whole file.", " in this file. Return the full file.", "."])
        return self.ask(request, block(show(pairs), language), block(show(changed), language))

    def extract(self):
        """Fields of one to three records as JSON."""
        r = self.r
        fields, templates = PHRASES["records"][r.choice(sorted(PHRASES["records"]))].values()
        rows = [{f: self.value(f) for f in fields} for _ in range(r.choice([1, 1, 1, 2, 3]))]
        style = r.randrange(6)
        if style == 0:
            text = "\n\n".join("\n".join(f"{k.replace('_', ' ').title()}: {v}" for k, v in row.items()) for row in rows)
        elif style == 1:
            text = "\n".join(" ".join(f"{k}={v}" for k, v in row.items()) for row in rows)
        else:
            text = "\n".join(r.choice(templates).format(**row) for row in rows)
        wanted = fields if r.random() < 0.5 else r.sample(fields, r.randint(2, len(fields) - 1))
        answer = [{k: row[k] for k in wanted} for row in rows]
        request = r.choice(
            ["Extract {} as JSON.", "Return JSON with the fields {}.", "Give me {} from the text below, as JSON."]
        )
        return self.ask(
            request.format(", ".join(wanted)), text, json.dumps(answer[0] if len(rows) == 1 else answer, indent=2)
        )

    def summary(self):
        """A summary, or an answer, that quotes sentences of the text."""
        r = self.r
        first = r.choice(self.paragraphs)
        texts = [first] + ([r.choice(self.paragraphs)] if r.random() < 0.4 and len(first) < 4 else [])
        text = "\n\n".join(" ".join(p) for p in texts)
        if r.random() < 0.65:
            quotes = [p[0] for p in texts] if len(texts) > 1 else [first[0], first[-1]]
            request = r.choice(
                [
                    "Summarise this text. Quote the key sentences.",
                    "Summarise the text in two quotes.",
                    "What are the main points? Quote them.",
                ]
            )
            return self.ask(request, text, f'The text says: "{quotes[0]}" It also says: "{quotes[1]}"')
        quote = r.choice(r.choice(texts))
        words = re.findall(r"\b[A-Za-z]{5,}\b", quote)
        about = max(words, key=lambda w: (-text.count(w), len(w))) if words else "it"
        return self.ask(
            f'What does the text say about "{about}"? Quote the sentence.',
            text,
            f'About "{about}" the text says: "{quote}"',
        )

    def triage(self):
        """Name the failing component of a log, quote its line, and say what to do."""
        r = self.r
        parts = r.sample(self.words, r.randint(3, 5))
        h, m, s, style = r.randint(0, 23), r.randint(0, 59), 0, r.randrange(3)
        count = r.randint(5, 10)
        bad = r.randrange(count)
        log = []
        for i in range(count):
            part, s = r.choice(parts), s + r.randint(0, 5)
            fill = {"h": self.value("host"), "n": r.randint(2, 9000), "p": self.value("path"), "w": self.word()}
            fault, advice = r.choice(PHRASES["faults"])
            level = "ERROR" if i == bad else r.choice(["INFO", "INFO", "DEBUG", "WARNING"])
            message = (fault if i == bad else r.choice(PHRASES["normal"])).format(**fill)
            time = f"{h:02}:{m:02}:{s:02}"
            log.append(
                [
                    f"{time} {level} {part}: {message}",
                    f"[{time}] [{part}] {level} {message}",
                    f"{level:<8}{part} | {message}",
                ][style]
            )
            if i == bad:
                answer = f"Component: {part}\nEvidence: `{log[-1]}`\nNext step: {advice.format(**fill)}."
        request = r.choice(
            [
                "Which component fails? Quote the log line.",
                "Triage this log.",
                "Find the failing component in these log lines and quote the evidence.",
            ]
        )
        return self.ask(request, "\n".join(log), answer)

    def tool(self):
        """One or two tool calls and an answer that uses the last result."""
        r = self.r

        def call(tool_name, **arguments):
            return {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": tool_name, "arguments": arguments}}],
            }

        kind = r.randrange(4)
        if kind == 0:
            _, name, source, _ = r.choice(self.functions)
            return [
                {"role": "user", "content": f"Show me the function `{name}`."},
                call("find_function", name=name),
                {"role": "tool", "content": source},
                {"role": "assistant", "content": block(source)},
            ]
        if kind == 1:
            module, test, n = self.word(), f"test_{self.word()}_{self.word()}", r.randint(3, 90)
            fault = r.choice(PHRASES["faults"])[0].format(
                h=self.value("host"), n=n, p=self.value("path"), w=self.word()
            )
            result = f"{n} tests run\nFAILED {test}: {fault}\n{n - 1} passed, 1 failed"
            return [
                {"role": "user", "content": f"Run the tests of {module} and tell me what fails."},
                call("run_tests", module=module),
                {"role": "tool", "content": result},
                {"role": "assistant", "content": f"One of {n} tests fails. `{test}` says: {fault}."},
            ]
        _, pairs, show = self.settings()
        folder, (key, value) = self.word(), r.choice(pairs)
        names = [f"{w}.{r.choice(['cfg', 'py', 'txt'])}" for w in r.sample(self.words, r.randint(2, 5))]
        path = f"{folder}/{r.choice(names)}"
        answer = {"role": "assistant", "content": f"In `{path}` the value of `{key}` is `{value}`."}
        read = [call("read_file", path=path), {"role": "tool", "content": show(pairs)}, answer]
        if kind == 2:
            return [{"role": "user", "content": f"What is `{key}` in {path}?"}] + read
        request = f"Look into the folder {folder} and tell me `{key}` from {path.split('/')[1]}."
        return [
            {"role": "user", "content": request},
            call("list_files", path=folder),
            {"role": "tool", "content": "\n".join(names)},
        ] + read

    def continuation(self):
        """The rest of a function whose beginning is given."""
        _, _, source, _ = self.r.choice(self.functions)
        cut = self.r.randint(len(source) // 4, len(source) * 2 // 3)
        request = self.r.choice(["Continue this code.", "Complete this function.", "Write the rest of this code."])
        return [
            {"role": "user", "content": f"{request}\n\n```python\n{source[:cut]}"},
            {"role": "assistant", "content": source[cut:].strip("\n") + "\n```"},
        ]

    def write(self):
        """Short fresh writing: a mail or note, or a paragraph in the library's own prose."""
        r = self.r
        if r.random() < 0.4:
            text = " ".join(r.choice(self.paragraphs))
            words = re.findall(r"\b[A-Za-z]{5,}\b", text) or ["it"]
            return [
                {"role": "user", "content": f"Write a paragraph about {r.choice(words)} and {r.choice(words)}."},
                {"role": "assistant", "content": text},
            ]
        w, a, b = (self.word() for _ in range(3))
        name = self.word().title()
        body = [
            r.choice(PHRASES["openings"]),
            *r.sample(PHRASES["middles"], r.randint(1, 3)),
            r.choice(PHRASES["closings"]),
        ]
        text = " ".join(s.format(w=f"the {w} project", a=a, b=b, A=a.title()) for s in body)
        kind = r.choice(["mail", "note", "message"])
        request = f"Write a short {kind} to {name} about the {w} project. Mention {a} and {b}."
        return [{"role": "user", "content": request}, {"role": "assistant", "content": f"Dear {name},\n\n{text}"}]

    def explain(self):
        """What a function does, in the words of its docstring."""
        for _ in range(50):
            _, name, source, doc = self.r.choice(self.functions)
            if doc:
                break
        first = " ".join((doc or "It has no description.").split("\n\n")[0].split())
        names = ", ".join(f"`{n}`" for n in dict.fromkeys(re.findall(r"\b(\w+)\(", source)))
        return self.ask(
            f"What does `{name}` do, and what does it call?", block(source), f"`{name}`: {first} It uses {names}."
        )

    def sample(self, kind=None):
        """Return (kind, messages, tools or None) of one task."""
        r = self.r
        kind = kind or r.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        messages, tools = getattr(self, kind)(), None
        if kind == "tool":
            used = {c["function"]["name"] for m in messages for c in m.get("tool_calls", [])}
            tools = [
                {"type": "function", "function": tool}
                for tool in PHRASES["tools"]
                if tool["name"] in used or r.random() < 0.5
            ]
        if r.random() < 0.3:
            messages = [{"role": "system", "content": r.choice(PHRASES["systems"])}] + messages
        return kind, messages, tools
