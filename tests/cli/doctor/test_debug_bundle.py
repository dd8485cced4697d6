"""The debug bundle has the useful files, and no secret from any of its sources."""

import base64
import json
import stat
import tarfile
import zipfile
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.debug_bundle import HIDDEN, Redactor

KEYS = {name: f'planted-{name}/"+\u00e9' for name in ("variable", "profile", "option", "other")}
UNKNOWN = "nobody-knows-this-one"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\\n{UNKNOWN}\\n-----END RSA PRIVATE KEY-----"
LOG = "\n".join(
    [
        "connecting as operator",
        *(
            f"raw {key} json {json.dumps(key)} repr {key!r} url {quote(key)}"
            for key in KEYS.values()
        ),
        *(f"base64 {base64.b64encode(key.encode()).decode()}" for key in KEYS.values()),
        f'password={UNKNOWN} secretKey: "{UNKNOWN}" "token": "{UNKNOWN}"',
        f"Authorization: Bearer {UNKNOWN}",
        f"run --secret-key {UNKNOWN} https://user:{UNKNOWN}@host/path",
        PEM.replace("\\n", "\n"),
        "the end",
    ]
)


def contents(path):
    """Return the texts in a bundle, by name."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
    else:
        with tarfile.open(path) as archive:
            found = {each.name: archive.extractfile(each).read() for each in archive}
    return {name.partition("/")[2]: content.decode() for name, content in found.items()}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Put a secret into every file that a bundle reads; return the arguments of the doctor."""
    profiles = tmp_path / "profiles.ini"
    profiles.write_text(
        f"[lab]\nnamesrv = a:1\nsecret-key = {KEYS['profile']}\naccess-key = operator\n"
        f"registry-password = {KEYS['other']}\n"
    )
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
    monkeypatch.setenv("ROCKETPOLL_TLS_KEY_PASSWORD", KEYS["variable"])
    monkeypatch.setenv("SPARK_AUTH_TOKEN", UNKNOWN)
    log = tmp_path / "broker.log"
    log.write_text(LOG)
    return ["--log", str(log), "--option", f"bodyRegistryPassword={KEYS['option']}"]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_debug_bundle_has_useful_files_and_no_secret(run, cluster, planted, tmp_path, suffix):
    topic, group = cluster.topic(), cluster.group()
    cluster.send(topic, "a body that is private")
    cluster.store_offset(group, topic, 0)
    path = tmp_path / f"bundle{suffix}"
    ran = run("doctor", "--bundle", path, *planted)
    assert f"wrote {path}" in ran.out
    found = contents(path)
    for name in found.keys() - {"README.txt"}:
        assert f"  {name} " in ran.out
        assert f"{name}: " in found["README.txt"]
    text = "\n".join(found.values())
    for key in (*KEYS.values(), UNKNOWN):
        forms = (key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe=""))
        assert not [form for form in (*forms, quote(key)) if form in text]
        assert base64.b64encode(key.encode()).decode() not in text
    assert "a body that is private" not in text
    assert json.loads(found["versions.json"])["packages"]["numpy"]
    [broker] = json.loads(found["brokers.json"])
    assert (broker["address"], "bootTimestamp" in broker["runtime"]) == (cluster.address, True)
    assert topic in json.loads(found["topics.json"])["shown"]
    assert json.loads(found["groups.json"])["shown"][group]["topics"] == [topic]
    assert json.loads(found["settings.json"])["profiles"]["lab"]["secret-key"] == HIDDEN
    assert "worker Python" in found["findings.txt"]
    assert found["logs/broker.log.txt"].startswith("connecting as operator\n")
    assert found["logs/broker.log.txt"].endswith("the end")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_debug_bundle_of_an_unreachable_cluster_says_so(run, tmp_path):
    path = tmp_path / "bundle.zip"
    run("doctor", "--namesrv", "127.0.0.1:1", "--bundle", path)
    assert "Connection refused" in json.loads(contents(path)["brokers.json"])["error"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--bundle", "b.txt"), 1, "End it with .zip or .tar.gz"),
        (("--bundle", "there.zip"), 1, "there.zip exists already. Choose another name"),
        (("--bundle", "no/b.zip"), 1, "cannot write no/b.zip: No such file or directory"),
        (("--log", "there.zip"), 2, "--log needs --bundle FILE"),
        (("--bundle", "b.zip", "--log", "none"), 2, "none does not exist. Check the path"),
    ],
)
def test_unwritable_debug_bundle_is_an_error(run, tmp_path, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.zip").write_text("mine")
    ran = run("doctor", "--namesrv", "127.0.0.1:1", *words)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert (tmp_path / "there.zip").read_text() == "mine"


SECRETS = st.text(min_size=6, max_size=30).filter(lambda text: not set(text) & set("(hiden)"))
TEXTS = st.text(max_size=20)


@given(SECRETS, TEXTS, TEXTS, st.data())
def test_debug_bundle_redacts_known_secrets(key, before, after, data):
    redactor = Redactor([key])
    quoted = data.draw(
        st.sampled_from([str, repr, json.dumps, lambda text: quote(text, errors="replace")])
    )
    text = f"{before}{quoted(key)}{after}"
    leaf = st.just(text) | st.text() | st.integers() | st.none()
    document = data.draw(
        st.recursive(
            leaf, lambda child: st.lists(child) | st.dictionaries(TEXTS | st.just(text), child)
        )
    )
    assert key not in redactor.text(text)
    written = json.dumps(redactor.document(document), ensure_ascii=False)
    assert key not in written
    assert json.dumps(key)[1:-1] not in written


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1))
def test_debug_bundle_keeps_text_without_secrets(text):
    redactor = Redactor(["correct-horse"])
    assert redactor.text(f"credentials accepted from {text}") == f"credentials accepted from {text}"
    assert redactor.document({"name": text, "count": 3}) == {"name": text, "count": 3}


@pytest.mark.parametrize("half", [slice(None), slice(1, None), slice(None, 2)])
def test_debug_bundle_hides_parts_of_private_keys(half):
    lines = PEM.split("\\n")[half]
    assert UNKNOWN not in Redactor([]).text("\n".join(lines))
