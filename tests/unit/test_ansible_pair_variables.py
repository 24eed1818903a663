"""From two hosts' variables to their pair description, and what is refused on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pair_hostvars import hostvars

from spark_pair import description, pair_variables, roles
from spark_pair.errors import DescriptionError
from spark_pair.inventory import ROOT


def refused(variables: dict[str, dict[str, Any]], host: str = "spark-a") -> str:
    with pytest.raises(DescriptionError) as caught:
        pair_variables.description_of(host, variables)
    return str(caught.value)


def changed(host: str, **values: Any) -> dict[str, dict[str, Any]]:
    variables = hostvars()
    variables[host].update(values)
    return variables


def test_both_hosts_get_the_same_description_but_for_me() -> None:
    one = pair_variables.description_of("spark-a", hostvars())
    two = pair_variables.description_of("spark-b", hostvars())
    assert (one.pop("me"), two.pop("me")) == ("head", "worker")
    assert one == two
    assert json.loads(json.dumps(one)) == one


def test_the_description_is_what_the_switch_reads() -> None:
    parsed = description.parse(pair_variables.description_of("spark-a", hostvars()))
    assert parsed.pair == "spark-a+spark-b"
    assert parsed.hosts["worker"].user == "bob"
    assert parsed.hosts["worker"].addresses == ("192.0.2.12", "198.51.100.12", "198.51.100.140")
    assert parsed.hosts["worker"].rails == ("enp1s0f0np0", "enP2p1s0f0np0")
    deepseek = parsed.server("deepseek")
    assert deepseek.api.port == 8888
    assert deepseek.api.model == "DeepSeek-V4.1-Flash-1017"
    assert deepseek.units_on("head") == ["dsv41-tensorfold.service"]
    assert deepseek.ports_on("head") == [8888]
    assert deepseek.images == ("engine:test",)
    assert deepseek.context is not None
    assert deepseek.context.expect == 262144
    assert deepseek.generation is not None
    assert deepseek.commands.dry_run is not None
    assert deepseek.commands.dry_run.argv == ("{generation}/launch", "DRY_RUN=1", "start.sh")
    hikari = parsed.server("hikari")
    assert hikari.generation is None
    assert [keeper.restore for keeper in hikari.keepers] == ["as_found", "as_found", "never"]


def weights_of(**changes: Any) -> Any:
    servers = pair_variables.description_of("spark-a", hostvars(**changes))["servers"]
    assert "weights" not in servers["hikari"]
    return servers["deepseek"].get("weights")


def test_an_engine_is_described_with_the_weights_that_its_ranks_are_cut_from() -> None:
    stock = weights_of()
    assert stock == {
        "checkpoint": "45ee5d0f",
        "overlay": None,
        "engram": "1bae0e1088993b9b82de08f59de5be5a34e42170",
        "engram_files": [
            {"pattern": "*-00047-of-*.safetensors", "count": 1},
            {"pattern": "*-00048-of-*.safetensors", "count": 1},
            {"pattern": "*.json", "count": 1},
        ],
    }
    overlay = "0bdc2036113c4fdda38ef6005b3cbc0bc0dfa0f0"
    assert weights_of(ablit_graft_enabled=True) == {**stock, "overlay": overlay}
    whole = "45ee5d0f" + "0" * 32
    extra = {"checkpoint": {"revision": whole}, "engram": {"hosts": ["head"]}}
    assert weights_of(weights_sources_extra=extra) == {
        **{**stock, "checkpoint": whole, "engram": None, "engram_files": []}
    }


def test_values_of_the_template_engine_are_taken_as_what_they_are() -> None:
    class Tagged(int):
        pass

    files = [{"pattern": "*.safetensors", "count": Tagged(39)}]
    assert weights_of(weights_sources_extra={"checkpoint": {"files": files}}) is not None


def test_without_a_checkpoint_among_the_sources_nothing_is_asked_about_weights() -> None:
    assert weights_of(weights_sources_extra={"checkpoint": {"enabled": False}}) is None
    assert weights_of(weights_sources={}) is None
    extra = {"engram": {"enabled": False}}
    assert weights_of(weights_sources_extra=extra)["engram"] is None


@pytest.mark.parametrize("entry", ["main", {"revision": "main"}])
def test_a_source_that_makes_no_sense_is_named(entry: Any) -> None:
    with pytest.raises(DescriptionError, match=r"weights_sources\.checkpoint.*\(host spark-a\)"):
        weights_of(weights_sources_extra={"checkpoint": entry})


def test_every_policy_has_a_default_variable() -> None:
    made = pair_variables.description_of("spark-a", hostvars())
    assert made["policy"] == {name: getattr(description.Policy, name) for name in made["policy"]}


def test_a_candidate_is_one_more_entry() -> None:
    variables = hostvars(
        tensorfold_service_engines={
            "deepseek": {"unit": "dsv41-tensorfold.service", "link": "dsv41"},
            "candidate": {"unit": "dsv41-candidate.service", "image": "engine:candidate"},
        },
        model_server_extra={
            "candidate": {
                "api": {"host": "head"},
                "probe": {"body": {"messages": [{"role": "user", "content": "OK?"}]}},
            },
        },
    )
    servers = pair_variables.description_of("spark-a", variables)["servers"]
    assert servers["candidate"]["images"] == ["engine:candidate"]
    assert servers["candidate"]["generation"]["hash"] != servers["deepseek"]["generation"]["hash"]


def test_an_extra_is_merged_key_by_key() -> None:
    variables = hostvars(model_server_extra={"hikari": {"api": {"model": "other"}, "ports": []}})
    hikari = pair_variables.description_of("spark-a", variables)["servers"]["hikari"]
    assert hikari["api"] == {"host": "worker", "port": 8000, "model": "other"}
    assert hikari["ports"] == []


KEY = "s3cret-s3cret-s3cret"


def locked(**changes: Any) -> dict[str, dict[str, Any]]:
    """A pair whose engine asks for a key."""
    asks = {"tensorfold_service_api_key": KEY, "tensorfold_service_api_open": False}
    return hostvars(**(asks | changes))


@pytest.mark.parametrize(
    ("own", "together"),
    [
        ({"api_key": "another-key-of-32-letters-000000"}, False),
        ({"api_key": KEY}, True),
        ({"api_open": True}, True),
        ({"api_key": "another-key-of-32-letters-000000", "state_dir": "/srv/state"}, True),
        ({"api_key": "another-key-of-32-letters-000000", "api_key_path": "/srv/key"}, True),
    ],
    ids=str,
)
def test_two_engines_never_write_different_keys_to_one_file(
    own: dict[str, Any], together: bool
) -> None:
    variables = locked()
    for host in variables.values():
        engines = host["tensorfold_service_engines"]
        host["tensorfold_service_engines"] = {
            **engines,
            "candidate": {"unit": "candidate.service", **own},
        }
    if together:
        assert len(pair_variables.engines_of("spark-a", variables)) == 2
        return
    with pytest.raises(DescriptionError) as caught:
        pair_variables.engines_of("spark-a", variables)
    said = str(caught.value)
    assert "deepseek and candidate" in said and "state/api-key" in said
    assert "tensorfold_service_api_key_path" in said and "state_dir" in said
    assert KEY not in said and "another-key" not in said


def test_an_api_key_is_a_file_in_the_description_never_the_key() -> None:
    variables = locked(model_server_api_keys={"hikari": "another-one"})
    for host in ("spark-a", "spark-b"):
        made = pair_variables.description_of(host, variables)
        for name in ("deepseek", "hikari"):
            key_file = made["servers"][name]["api"]["key_file"]
            assert key_file == f"/etc/spark-pair/secrets/{name}.key"
        assert KEY not in json.dumps(made)
        keys = pair_variables.api_keys_of(host, variables)
        assert keys == {"hikari": "another-one", "deepseek": KEY}


def test_an_open_api_needs_no_key() -> None:
    assert pair_variables.api_keys_of("spark-b", hostvars()) == {}
    made = pair_variables.description_of("spark-a", hostvars())
    assert "key_file" not in made["servers"]["deepseek"]["api"]


def test_nothing_that_is_made_of_an_engine_holds_its_key() -> None:
    (engine,) = pair_variables.engines_of("spark-a", locked())
    assert engine.api_key
    assert engine.api_key_path == "/home/ann/.cache/dsv41-tensorfold/state/api-key"
    assert KEY not in repr(engine)
    assert KEY not in json.dumps(engine.as_dict())


def test_the_same_key_may_be_given_twice_but_not_another() -> None:
    same = locked(model_server_api_keys={"deepseek": KEY})
    assert pair_variables.api_keys_of("spark-a", same) == {"deepseek": KEY}
    other = "0ther-0ther-0ther"
    for variables in (
        locked(model_server_api_keys={"deepseek": other}),
        hostvars(model_server_api_keys={"deepseek": other}),
    ):
        said = refused(variables)
        assert "model_server_api_keys.deepseek is" in said
        assert "remove it" in said and "(host spark-a)" in said
        assert KEY not in said and other not in said


def test_an_engine_input_is_refused_with_the_host() -> None:
    said = refused(hostvars(engine_image_patches=[{"path": "/a.patch"}]))
    assert "engine_image_patches[0].sha256" in said and "(host spark-a)" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_server_wanted": "deepsek"}, "model_server_wanted is 'deepsek'"),
        ({"model_server_wanted": "deepsek"}, "did you mean 'deepseek'"),
        ({"model_server_fallback": None}, "model_server_fallback is not set"),
        ({"model_server_quiet_period": -1}, "model_server_quiet_period is -1"),
        ({"model_server_quiet_period": "soon"}, "must be a number of seconds above 0"),
        ({"model_server_restart_limit": 1.5}, "policy.restart_limit"),
        ({"model_server_catalog": []}, "model_server_catalog must be a mapping"),
        (
            {"model_server_extra": {"hikari": {"api": {"host": "left"}}}},
            "model_server_catalog.hikari.api.host is 'left'",
        ),
        (
            {"model_server_extra": {"hikari": {"api": {"scheme": "gopher"}}}},
            "model_server_catalog.hikari.api.scheme",
        ),
        ({"model_server_extra": {"hikari": {"keeper": []}}}, "did you mean 'keepers'"),
        ({"model_server_extra": {"deepseek": {"ready_timeout": 0}}}, "ready_timeout is 0"),
        (
            {"tensorfold_service_engines": {"other": {"unit": "x.service"}}},
            "tensorfold_service_engines names 'other'",
        ),
        ({"model_server_api_keys": {"hikary": "x"}}, "model_server_api_keys names 'hikary'"),
        ({"tensorfold_service_parallel": 99}, "tensorfold_service_parallel is 99"),
    ],
)
def test_wrong_variables_are_refused_in_a_sentence_with_the_host(
    changes: dict[str, Any], said: str
) -> None:
    message = refused(hostvars(**changes))
    assert said in message
    assert "spark-a" in message or "names" in message or "model_server_catalog" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("host", "values", "said"),
    [
        ("spark-a", {"pair_peer": None}, "pair_peer is not set for spark-a"),
        ("spark-a", {"pair_peer": "spark-c"}, "did you mean 'spark-b'"),
        ("spark-a", {"pair_peer": "spark-a"}, "spark-a itself"),
        ("spark-b", {"pair_peer": "spark-b"}, "must name each other"),
        ("spark-b", {"pair_role": "head"}, "both have pair_role head"),
        ("spark-a", {"pair_role": "boss"}, "pair_role of spark-a is 'boss'"),
        ("spark-b", {"spark_user": ""}, "spark_user is not set for spark-b"),
        ("spark-b", {"spark_home": "~bob"}, "spark_home of spark-b is '~bob'"),
        ("spark-b", {"cx7_network_rails": [{"address": "x"}]}, "cx7_network_rails[0].address"),
        ("spark-b", {"cx7_network_rails": "x"}, "cx7_network_rails must be a list"),
        ("spark-b", {"model_server_wanted": "none"}, "set it once for both"),
    ],
)
def test_a_wrong_inventory_is_refused_naming_the_host(
    host: str, values: dict[str, Any], said: str
) -> None:
    assert said in refused(changed(host, **values))


def test_rails_of_which_one_has_no_interface_are_not_named() -> None:
    rails = [{"interface": "enp1s0f0np0", "address": "198.51.100.12/25"}]
    variables = changed("spark-b", cx7_network_rails=[*rails, {"address": "198.51.100.140/25"}])
    made = pair_variables.description_of("spark-a", variables)
    assert made["hosts"]["worker"]["rails"] == []


@pytest.mark.parametrize(
    "keys", [{"deepseek": ""}, {"deepseek": 5}, {"deepseek": "a\nb"}, "sk-123"]
)
def test_an_unusable_key_is_refused_without_being_shown(keys: Any) -> None:
    said = refused(hostvars(model_server_api_keys=keys))
    assert "model_server_api_keys" in said
    assert "sk-123" not in said


def test_numbers_of_the_command_line_are_text() -> None:
    made = pair_variables.description_of("spark-a", hostvars(model_server_quiet_period="2.5"))
    assert made["policy"]["quiet_period"] == 2.5


def test_a_template_that_cannot_be_resolved_is_named() -> None:
    class Broken(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            if key == "spark_home":
                raise ValueError("'house' is undefined")
            return super().__getitem__(key)

    variables = hostvars()
    variables["spark-a"] = Broken(variables["spark-a"])
    assert "spark_home of spark-a cannot be worked out: 'house' is undefined" in refused(variables)


def test_misspelt_variables_are_found_with_the_nearest_known() -> None:
    known = roles.known_variables(ROOT)
    prefixes = roles.role_prefixes(ROOT)
    names = [
        "tensorfold_service_paralel",
        "model_server_wanted",
        "pair_per",
        "unrelated",
        "spark_usr",
    ]
    assert pair_variables.misspelt(names, known, prefixes) == [
        ("pair_per", "pair_peer"),
        ("spark_usr", "spark_user"),
        ("tensorfold_service_paralel", "tensorfold_service_parallel"),
    ]


def test_variables_of_others_are_left_alone() -> None:
    names = ["spark_version", "pair_programming", "cx7_cable", "model", "__model_server_way"]
    assert (
        pair_variables.misspelt(names, roles.known_variables(ROOT), roles.role_prefixes(ROOT)) == []
    )
