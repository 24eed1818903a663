"""Who may use the engine's API: whoever has the key, then everybody, both only declared."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from stories import preparation, weights
from stories.machines import HEAD, WORKER, exit_code_of, machine, on
from stories.plays import INVENTORY, ansible_playbook, play
from stories.servers import API, RANK, assert_deepseek_alone, back_to_hikari, rank_runs
from stories.waiting import wait_for

from simulated_pair import serving
from simulated_pair.naming import CHECKOUT

KEY, ANOTHER = "s3cret-of-the-first-day", "s3cret-of-the-second-day"
SECRETS = "/etc/spark-pair/secrets/deepseek.key"


def locked(key: str) -> dict[str, object]:
    return {"tensorfold_service_api_key": key, "tensorfold_service_api_open": False}


@pytest.fixture(scope="module", autouse=True)
def keyless_again(prepared: None) -> Iterator[None]:
    back_to_hikari()
    yield
    preparation.forget()  # its generation is not the one that other stories begin with
    back_to_hikari()


def status_of(path: str, key: str = "") -> int:
    """Status of a request from outside of the pair; a completion for the chat's path."""
    body = None
    if path.endswith("/completions"):
        question = {"role": "user", "content": "Say hello."}
        body = json.dumps({"model": API["deepseek"][2], "messages": [question], "max_tokens": 4})
    request = urllib.request.Request(
        f"http://{machine(HEAD).management}:{serving.DEEPSEEK_PORT}{path}",
        data=body.encode() if body else None,
        headers={"Content-Type": "application/json"}
        | ({"Authorization": f"Bearer {key}"} if key else {}),
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


CHAT = "/v1/chat/completions"


def key_path() -> str:
    manifest = on(HEAD, "cat /var/lib/spark-pair/current/deepseek/generation.json")
    return str(json.loads(manifest)["serves"]["key"])


def ranks() -> str:
    return on(HEAD, f"docker inspect --format '{{{{.Id}}}}' {RANK}")


@pytest.fixture(scope="module")
def with_a_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """A plain run with a key, as loud as it can be: what it said, and every place with the key."""
    secret = tmp_path_factory.mktemp("vault") / "vault.yml"
    secret.write_text(json.dumps(locked(KEY)))
    with weights.leaks_of(KEY) as places:
        code, said = ansible_playbook(
            *("-i", str(INVENTORY), "site.yml", "--diff", "-vvv", "-e", f"@{secret}")
        )
    assert code == 0, said[-5000:]
    return said, places


def test_a_plain_run_ends_with_a_server_that_asks_for_the_key(
    with_a_key: tuple[str, list[str]],
) -> None:
    assert rank_runs(HEAD) and rank_runs(WORKER)
    for path in ("/v1/models", "/metrics", CHAT):
        assert status_of(path) == 401, path
        assert status_of(path, KEY) == 200, path
    # Found by probe and by metrics, both of which need it.
    known = json.loads(on(HEAD, "spark-pair status --json"))["views"]["head"]["apis"]["deepseek"]
    assert known["probe"]["kind"] == "ok", known
    assert (known["load"]["running"], known["load"]["waiting"]) == (0, 0), known
    assert exit_code_of(WORKER, "spark-pair probe deepseek")[0] == 0


def test_the_key_is_in_its_files_and_nowhere_else(with_a_key: tuple[str, list[str]]) -> None:
    said, places = with_a_key
    assert KEY not in said, [line for line in said.splitlines() if KEY in line][:5]
    assert sorted(places) == sorted(
        [f"{HEAD}: {key_path()}", f"{HEAD}: {SECRETS}", f"{WORKER}: {SECRETS}"]
    )
    for host, path in ((HEAD, key_path()), (HEAD, SECRETS), (WORKER, SECRETS)):
        assert on(host, f"stat -c '%a %h' {path}").strip() == "600 1", (host, path)
    for host in (HEAD, WORKER):
        assert KEY not in on(host, f"docker inspect {RANK}; docker logs {RANK} 2>&1")
    for folder in ("evidence", "inventory"):
        assert not weights.files_with(CHECKOUT / folder, KEY)


def test_another_key_holds_within_a_second_and_without_a_restart(
    with_a_key: tuple[str, list[str]],
) -> None:
    before = ranks()
    played = play("service", extra_vars=locked(ANOTHER)).succeeded()
    # The key's file and both machines' copies for whoever asks; such tasks hide what they report.
    assert played.changed == {HEAD: 2, WORKER: 1} and not played.changes, played.changes
    # The engine looks at its file once a second.
    wait_for("the other key holds", lambda: status_of(CHAT, ANOTHER) == 200, 30)
    assert status_of(CHAT, KEY) == 401
    assert exit_code_of(HEAD, "spark-pair probe deepseek")[0] == 0
    assert ranks() == before


def test_it_is_open_again_after_a_drained_restart(with_a_key: tuple[str, list[str]]) -> None:
    before = ranks()
    played = play("service,cutover").succeeded()
    # Asked with its key while it still ran with one: else it would have been taken for dead.
    assert any("drain" in line for line in played.switch["lines"]), played.switch["lines"]
    assert ranks() != before
    assert status_of(CHAT) == status_of("/metrics") == 200
    assert_deepseek_alone()


def test_nothing_chosen_is_refused_with_both_ways() -> None:
    played = play("service", extra_vars={"tensorfold_service_api_open": False}).refused()
    words = played.one_sentence()
    assert "tensorfold_service_api_key" in words and "tensorfold_service_api_open: true" in words


def test_the_head_reckons_its_own_pool() -> None:
    said = on(HEAD, "spark-pair pool --prompt 30000 --max-tokens 2500")
    assert "of the 262144 tokens of the pool: 4 fit at once" in said
