"""The npm package as packed, and docs/senders-contract.md: what Node sends arrives on time."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from sqsdelay.core.message import MESSAGE_ID, due_ms_of_id
from sqsdelay.testing import LocalAws
from tests.acceptance.contract_site import (
    HOP,
    Site,
    attribute,
    block,
    run,
    was_relayed,
    with_short_hops,
)
from tests.guides.page import ROOT


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: the packed package in its node_modules, beside the SDK."""
    folder = tmp_path_factory.mktemp("project")
    modules = folder / "node_modules"
    modules.mkdir()
    run("npm", "pack", "--silent", "--pack-destination", str(folder), cwd=ROOT / "typescript")
    (packed,) = folder.glob("sqsdelay-*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(modules / "sqsdelay")
    for name in ("@aws-sdk", "@types"):
        (modules / name).symlink_to(ROOT / "node_modules" / name)
    return folder


@pytest.fixture
def site(local_aws: LocalAws) -> Site:
    return Site(local_aws, f"node-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def relayed(site: Site) -> Iterator[Site]:
    with site.relayed():
        yield site


def test_the_packed_package_keeps_the_contract(project: Path) -> None:
    """Every vector, and what a network does: with Node's test runner, against what npm would publish."""
    tests = project / "test"
    tests.mkdir()
    for path in (ROOT / "typescript" / "test").glob("*.test.mjs"):
        (tests / path.name).write_text(path.read_text())
    vectors = ROOT / "contract" / "vectors.json"
    told = run(
        "node", "--test", "--test-reporter=tap", "test/", cwd=project, env={"VECTORS": str(vectors)}
    )
    count = re.search(r"^# pass (\d+)$", told, re.MULTILINE)
    assert count is not None
    assert int(count[1]) > len(json.loads(vectors.read_text())["vectors"])
    assert "# fail 0\n" in told


def test_the_package_holds_what_is_built_and_no_sources(project: Path) -> None:
    """Modules, their types, the README; no tests and no TypeScript to compile."""
    package = project / "node_modules" / "sqsdelay"
    found = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    modules = [path.stem for path in (ROOT / "typescript" / "src").glob("*.ts")]
    built = {f"dist/{name}{kind}" for name in modules for kind in (".js", ".d.ts")}
    assert found == built | {"package.json", "README.md", "LICENSE"}


def test_npm_and_pypi_get_one_version_of_one_repository() -> None:
    """npm refuses a package with provenance whose repository is not the one that publishes it."""
    package = json.loads((ROOT / "typescript" / "package.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert package["version"] == project["version"]
    assert package["repository"] == {
        "type": "git",
        "url": f"git+{project['urls']['Repository']}.git",
        "directory": "typescript",
    }


@pytest.mark.nightly
def test_the_readmes_code_passes_the_types(project: Path) -> None:
    """As in a user's own project, which is strict."""
    text = (ROOT / "typescript" / "README.md").read_text()
    (code,) = re.findall(r"```ts\n(.*?)```", text, re.DOTALL)
    wrong = '// @ts-expect-error: no such option\nawait sender.send("orders", "x", { delaySeconds: 1 });\n'
    (project / "readme.mts").write_text(code + wrong)
    options = "--strict --noEmit --skipLibCheck --module nodenext --target es2022 --types node"
    run(str(ROOT / "node_modules/.bin/tsc"), *options.split(), "readme.mts", cwd=project)


def test_what_node_sends_hops_and_arrives_on_time(relayed: Site, project: Path) -> None:
    """A delay, a due time and a batch through the delay queue; body, attributes and id arrive."""
    site = relayed
    (project / "send.mjs").write_text(
        f"""
        import {{ DelaySender }} from "sqsdelay";
        const sender = new DelaySender(undefined, {{ hopSeconds: {HOP} }});
        const attributes = {{ tenant: "acme", n: 7, bytes: new Uint8Array([0, 255]) }};
        const one = await sender.send("{site.name}", "delay", {{ delay: 3.5, attributes }});
        const dueAt = new Date(Date.now() + 6000);
        const many = await sender.sendMany("{site.name}", [
          {{ body: "due", dueAt, messageId: "order-7" }},
          {{ body: "", delay: 3 }},
          {{ body: "direct", delay: 1 }},
        ]);
        console.log(JSON.stringify([dueAt, one, ...many]));
        """
    )
    told = run("node", "send.mjs", cwd=project, env=site.aws.environment())
    due, *results = json.loads(told)
    assert [r.get("route") for r in results] == ["delay-queue", "delay-queue", None, "direct"]
    arrived = site.arrived(3)
    delayed, dated = arrived["delay"], arrived["due"]
    for message, result in ((delayed, results[0]), (dated, results[1])):
        assert message["at"] >= datetime.fromisoformat(result["due"])
        assert attribute(message, MESSAGE_ID) == result["messageId"]
    assert dated["at"] >= datetime.fromisoformat(due)
    assert attribute(dated, MESSAGE_ID) == "order-7"
    assert due_ms_of_id(results[0]["messageId"]) == _ms(results[0]["due"])
    assert attribute(delayed, "tenant") == "acme"
    assert delayed["MessageAttributes"]["n"] == {"StringValue": "7", "DataType": "Number"}
    assert delayed["MessageAttributes"]["bytes"]["BinaryValue"] == b"\x00\xff"


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_the_pages_javascript_runs(local_aws: LocalAws, project: Path) -> None:
    """With the package, and with the SDK alone: what is relayed arrives under its sender's id."""
    package, bare = block("js", "DelaySender"), block("js", "GetQueueUrlCommand")
    (project / "bare.mjs").write_text(with_short_hops(bare.text))
    (project / "page.mjs").write_text(
        package.text
        + "if (results.some((result) => result.error)) throw results;\n"
        + 'const { sendDelayed } = await import("./bare.mjs");\n'
        + 'await sendDelayed("bare", 3, "bare-1");\nawait sendDelayed("now", 0);\n'
    )
    with Site(local_aws, "orders") as orders, orders.relayed():
        run("node", "page.mjs", cwd=project, env=orders.aws.environment())
        arrived = orders.arrived(2)
        assert set(arrived) == {"bare", "now"}
        was_relayed(arrived["bare"], message_id="bare-1")
