"""Files in deploy/ match the broker: settings, metrics and pages."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from support.brokers.broker_kinds import wait_until
from support.brokers.in_process import tell
from support.brokers.metrics_endpoint import got
from support.brokers.secured import OPERATOR
from support.rocketmq.real_broker import free_port
from support.servers.tls import CERTIFICATES, TRUSTING

from rocketpoll import Admin, ClientInstance, EmbeddedBroker
from rocketpoll.broker.settings.settings import load_config
from rocketpoll.errors import ClientError

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "rocketpoll.service"
RULES = DEPLOY / "prometheus" / "rocketpoll.rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "rocketpoll.tests.yml"
OF_ROCKETMQS_UNITS = re.compile(r'rocketmq_\w+_milliseconds use base unit "seconds"')
METRIC = re.compile(r"\b(?:rocketmq|rocketpoll|process)_[a-z_0-9]+\b")
OPERATE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((DEPLOY / "grafana" / "rocketpoll.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Return the text of a broker's metrics."""
    texts = []

    async def story(broker):
        await (await broker.connect()).put("a")
        texts.append((await got(broker.controller.metrics_port, "/metrics"))[1])

    tell(story, tmp_path_factory.mktemp("store"), metricsPort=0)
    return texts[0]


@pytest.fixture(scope="module")
def shown(scraped):
    """Return the names of all metrics of a broker."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", scraped, re.MULTILINE):
        ends = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        names.update(f"{name}{end}" for end in ends)
    return names


def expressions():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for alert, body in alerts().items():
        yield f"alert {alert}", body


def alerts():
    """Return the text of each rule by its name."""
    _, *rules = RULES.read_text(encoding="utf-8").split("- alert: ")
    return {name.strip(): body for name, _, body in (each.partition("\n") for each in rules)}


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_of_dashboards_and_alerts_use_existing_metrics(where, expression, shown):
    asked = set(METRIC.findall(expression))
    assert asked <= shown, f"{where}: {asked - shown}"
    assert asked or "up{" in expression


def test_each_alert_has_a_section_in_the_operating_guide():
    told = re.findall(r"^### (\w+)$", OPERATE, re.MULTILINE)
    assert set(alerts()) <= set(told)


def test_each_alert_has_a_rule_test_in_which_it_fires():
    fired = re.findall(
        r"^        alertname: (\w+)$", RULE_TESTS.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(alerts()) == set(fired)


def test_own_metrics_are_listed_in_the_operating_guide(shown):
    rows = set(re.findall(r"^\| `([a-z_]+)`", OPERATE, re.MULTILINE))
    ours = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    assert {name for name in ours if not name.startswith("process_")} <= rows


def test_panels_have_their_own_numbers_and_places():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_dockerfile_and_systemd_unit_use_existing_settings():
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    start = re.search(r"ENTRYPOINT (\[.*?\])", dockerfile.replace("\\\n", ""), re.DOTALL)
    arguments = json.loads(start[1])
    assert arguments[:4] == ["rocketpoll", "broker", "--log-format", "json"]
    config = load_config(overrides=arguments[4:])
    assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 5557)  # noqa: S104  # inside the container
    probed = re.search(r"http://127.0.0.1:(\d+)/readyz", dockerfile)
    assert int(probed[1]) == config.metrics_port
    compose = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    (more,) = re.findall(r'command: \["(\w+)=', compose)
    load_config(overrides=[f"{more}=127.0.0.1"])


def test_systemd_unit_uses_notify_and_watchdog():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT, encoding="utf-8")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert "-HUP" in service["ExecReload"]
    assert "storePathRootDir=${STATE_DIRECTORY}" in service["ExecStart"]
    config = load_config()
    wanted = config.server.max_connections + config.store.open_files_max
    assert int(service["LimitNOFILE"]) > wanted + 100
    assert not re.search(r"^Documentation=file:", UNIT.read_text(encoding="utf-8"), re.MULTILINE), (
        "pages are not installed"
    )


def test_systemd_unit_does_not_restart_a_broker_with_wrong_settings(tmp_path):
    (tmp_path / "broker.conf").write_text("listenPort=x\n", encoding="utf-8")
    for conf in (tmp_path / "broker.conf", tmp_path / "missing.conf"):
        done = subprocess.run(
            [sys.executable, "-m", "rocketpoll", "broker", "-c", conf],
            capture_output=True, check=False,
        )  # fmt: skip
        assert f"RestartPreventExitStatus={done.returncode}\n" in UNIT.read_text(encoding="utf-8")
        assert done.returncode == 2


def checked(*command, said=None):
    """Run another project's checker; any complaint fails the test."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=said)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
def test_systemd_finds_the_unit_safe():
    checked("systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT))


def test_unit_and_compose_file_bound_memory():
    """The unit tells the kernel to kill other processes first, so its own memory needs a limit."""
    unit = UNIT.read_text(encoding="utf-8")
    assert "OOMScoreAdjust=-500" in unit
    assert re.search(r"^MemoryMax=2G$", unit, re.MULTILINE)
    compose = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    _, *services = re.split(r"\n\n  (?=\w+:\n)", compose.partition("\nservices:")[2])
    assert len(services) == 2
    for text in compose.partition("\nservices:")[2].partition("\nvolumes:")[0].split("\n\n"):
        assert "mem_limit:" in text, text


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's package prometheus is not here")
def test_prometheus_takes_rules_and_configuration_and_a_scrape(scraped):
    checked("promtool", "check", "rules", str(RULES))
    checked("promtool", "test", "rules", str(RULE_TESTS))
    checked("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    lint = ("promtool", "check", "metrics")
    done = subprocess.run(lint, check=False, capture_output=True, text=True, input=scraped)
    assert [line for line in done.stderr.splitlines() if not OF_ROCKETMQS_UNITS.match(line)] == []


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("prometheus"), reason="Debian's package of it is not here")
def test_prometheus_scrapes_the_broker_and_every_rule_has_its_metrics(tmp_path):
    """As in deploy/compose.yaml, on this machine and with shorter intervals."""
    port, of_metrics = free_port(), free_port()
    with EmbeddedBroker(metricsPort=of_metrics) as broker:
        broker.send("orders", "a")
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace("rocketpoll:5557", f"127.0.0.1:{of_metrics}")
        text = text.replace("_interval: 15s", "_interval: 1s")
        (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
        shutil.copy(RULES, tmp_path)
        with prometheus(tmp_path, port) as ask:

            def evaluated():
                groups = ask("rules")["groups"]
                rules = [rule for group in groups for rule in group["rules"]]
                return rules and all(each["health"] != "unknown" for each in rules) and rules

            rules = wait_until("all rules evaluated", evaluated)
            assert [each["lastError"] for each in rules if each.get("lastError")] == []
            assert {each["name"] for each in rules} == alerts().keys()

            def scraped():
                found = ask("targets")["activeTargets"]
                return [each for each in found if each["health"] != "unknown"]

            [target] = wait_until("a scrape", scraped)
            assert (target["health"], target["lastError"]) == ("up", "")
            ready = wait_until("a sample", lambda: ask("query?query=rocketpoll_ready")["result"])
            assert ready[0]["metric"]["job"] == "rocketpoll"
            assert ready[0]["value"][1] == "1"


@contextmanager
def prometheus(directory, port):
    """Run a local Prometheus; return a function that queries its API."""
    command = [
        "prometheus", f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=20) as answer:
            return json.load(answer)["data"]

    with (directory / "log").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)

    def is_ready():
        assert running.poll() is None, (directory / "log").read_text(encoding="utf-8")
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
            return True

    try:
        wait_until("a Prometheus that is ready", is_ready)
        yield ask
    finally:
        running.kill()
        running.wait()


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not here")
def test_docker_compose_takes_its_file():
    checked("docker-compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet")


@pytest.mark.deep
@pytest.mark.parametrize("name", ["Dockerfile", "kubernetes/spark.Dockerfile"])
def test_dockerfile_passes_hadolint(name):
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint is not here")
    checked(str(linter), str(DEPLOY / name))


@pytest.fixture(scope="module")
def kubernetes():
    """Return the pod of the StatefulSet, its only container, and the service."""
    text = (DEPLOY / "kubernetes" / "rocketpoll.yaml").read_text(encoding="utf-8")
    service, stateful_set = yaml.safe_load_all(text)
    pod = stateful_set["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    return stateful_set, pod, container, service


def test_stateful_set_is_one_confined_pod_that_its_service_finds(kubernetes):
    stateful_set, pod, container, service = kubernetes
    assert stateful_set["spec"]["replicas"] == 1
    assert stateful_set["spec"]["serviceName"] == service["metadata"]["name"]
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert stateful_set["spec"]["selector"]["matchLabels"] == labels
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"EXPOSE {ports['remoting']} {ports['metrics']}" in dockerfile
    user = pod["spec"]["securityContext"]
    assert f"--uid {user['runAsUser']} " in dockerfile
    assert user["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in stateful_set["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {each["name"] for each in pod["spec"]["volumes"]}


def secret(directory, **files):
    """Lay out files as Kubernetes mounts a secret: links to a directory that it replaces."""
    data = directory / "..data"
    data.mkdir(parents=True)
    for name, content in files.items():
        file = data / name.replace("_", ".")
        file.write_bytes(content)
        file.chmod(0o440)
        (directory / file.name).symlink_to(Path("..data") / file.name)


def test_stateful_set_starts_a_broker_that_its_probes_find_ready(kubernetes, tmp_path):
    """Started with the container's command, with other ports and with the mounts in a directory."""
    _, _, container, _ = kubernetes
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    own = {path: str(tmp_path / name) for name, path in mounts.items()}
    first = json.dumps({"username": OPERATOR.access_key, "password": OPERATOR.secret_key})
    conf = (
        f"authenticationEnabled=true\nauthorizationEnabled=true\ninitAuthenticationUser={first}\n"
    )
    secret(tmp_path / "conf", broker_conf=conf.encode())
    pem = {name: (CERTIFICATES / f"server.{name}").read_bytes() for name in ("pem", "key")}
    secret(tmp_path / "tls", tls_crt=pem["pem"], tls_key=pem["key"])
    (tmp_path / "store").mkdir()
    ports = {each["name"]: free_port() for each in container["ports"]}
    command = [*container["command"], f"listenPort={ports['remoting']}"]
    for path, directory in own.items():
        command = [each.replace(path, directory) for each in command]
    command = [
        each.replace("metricsPort=5557", f"metricsPort={ports['metrics']}") for each in command
    ]
    assert command[0] == "rocketpoll"
    environment = {each["name"]: each["value"] for each in container["env"]}
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=log,
            stderr=log,
        )

    def passes(probe):
        assert broker.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
        asked = container[probe]["httpGet"]
        url = f"http://127.0.0.1:{ports[asked['port']]}{asked['path']}"
        with suppress(OSError), urllib.request.urlopen(url, timeout=4) as answer:
            return answer.status == 200

    try:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_until(probe, lambda probe=probe: passes(probe))
        address = f"127.0.0.1:{ports['remoting']}"
        with Admin(instance=ClientInstance(address, tls=TRUSTING, credentials=OPERATOR)) as admin:
            admin.create_topic("orders")
        for refused in ({"tls": TRUSTING}, {"credentials": OPERATOR}):
            with (
                Admin(instance=ClientInstance(address, **refused)) as admin,
                pytest.raises(ClientError),
            ):
                admin.topics()
    finally:
        broker.terminate()
        assert broker.wait(60) == 0
    assert (tmp_path / "store" / "config" / "topics.json").exists()
