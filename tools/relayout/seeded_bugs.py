"""Remakes the seeded patches for a tree that relayout.py has changed.

python tools/relayout/seeded_bugs.py OLD_TREE NEW_TREE tools/relayout/tables/*.json
"""

import difflib, json, re, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import relayout as r

old_tree, new_tree = Path(sys.argv[1]), Path(sys.argv[2])
RUFF = str(old_tree / ".venv/bin/ruff")
tracked = subprocess.run(
    ["git", "-C", str(old_tree), "ls-files"], check=True, capture_output=True, text=True
).stdout.split("\n")
paths = [
    p
    for p in tracked
    if p.endswith(".py") and p.split("/")[0] in {"broker", "rmq_spark", "rocketpoll"}
]
table = {
    "move": {},
    "merge": {},
    "split": {},
    "rename": {},
    "packages": {},
    "inits": {},
    "post": {},
}
for name in sys.argv[3:]:
    given = json.loads(Path(name).read_text())
    for kind in table:
        table[kind].update(given.get(kind, {}))
layout = r.Layout(paths, **table)
texts = {p: (old_tree / p).read_text() for p in paths}
kept = recut = 0
failed = []
for patch in sorted((old_tree / "tests/seeded/bugs").glob("*.patch")):
    target = new_tree / "tests/seeded/bugs" / patch.name
    text = patch.read_text()
    head, _, body = text.partition("diff --git")
    found = re.search(r"^--- a/(\S+)", text, re.M)
    path = found[1]
    new_path = layout.home(path) if path in layout.modules.values() else path
    simple = head + re.sub(r"([ab])/" + re.escape(path), rf"\1/{new_path}", "diff --git" + body)
    target.write_text(simple)
    if (
        subprocess.run(
            ["git", "-C", str(new_tree), "apply", "--check", str(target)], capture_output=True
        ).returncode
        == 0
    ):
        kept += 1
        continue
    with tempfile.TemporaryDirectory() as scratch:
        old_file = Path(scratch) / path
        old_file.parent.mkdir(parents=True)
        old_file.write_text(texts[path])
        subprocess.run(["git", "init", "-q", scratch], check=True)
        done = subprocess.run(
            ["git", "-C", scratch, "apply", "--unidiff-zero" if False else "--recount", str(patch)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            failed.append((patch.name, "old: " + done.stderr.strip()[:100]))
            continue
        mutated = old_file.read_text()
    after = None
    for candidate in {new_path, *layout.split.get(path, {})}:
        good = (new_tree / candidate).read_text()
        try:
            result = r.transformed({**texts, path: mutated}, layout, candidate)[candidate]
        except SyntaxError as error:
            failed.append((patch.name, str(error)))
            break
        for old, new in layout.post.get(candidate, []):
            result = (
                re.sub(old[3:], new, result) if old.startswith("re:") else result.replace(old, new)
            )
        (new_tree / candidate).write_text(result)
        subprocess.run(
            [RUFF, "check", "-q", "--select", "I,PIE790,TC005", "--fix", candidate],
            cwd=new_tree,
            capture_output=True,
        )
        base_imports = good
        subprocess.run([RUFF, "format", "-q", candidate], cwd=new_tree, capture_output=True)
        result = (new_tree / candidate).read_text()
        (new_tree / candidate).write_text(good)
        # unused imports that ruff removed in the good file must not come back
        diff = list(
            difflib.unified_diff(
                good.splitlines(True),
                result.splitlines(True),
                f"a/{candidate}",
                f"b/{candidate}",
                n=1,
            )
        )
        if diff:
            after = (candidate, diff)
            break
    if after is None:
        failed.append((patch.name, "no difference"))
        continue
    candidate, diff = after
    target.write_text(head + f"diff --git a/{candidate} b/{candidate}\n" + "".join(diff))
    if subprocess.run(
        ["git", "-C", str(new_tree), "apply", "--check", str(target)], capture_output=True
    ).returncode:
        failed.append((patch.name, "does not apply"))
    recut += 1
print("kept", kept, "recut", recut, "failed", len(failed))
for each in failed:
    print(*each)
