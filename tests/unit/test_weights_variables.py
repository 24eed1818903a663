"""What variables say about the weights, and how a mistake in them is told."""

from __future__ import annotations

from typing import Any

import pytest
from pair_hostvars import hostvars

from spark_pair.errors import DescriptionError
from spark_pair.weights.budget import GIB
from spark_pair.weights.variables import Settings, settings_of, token_of

SECRET = "hf_AbcdefghijklmnopqrstuvwxyzABCDEFGH"


def variables(**changes: Any) -> dict[str, dict[str, Any]]:
    return hostvars(**{"weights_hub_token": "", **changes})


def read(**changes: Any) -> Settings:
    return settings_of("spark-b", variables(**changes))


def refusal(**changes: Any) -> str:
    with pytest.raises(DescriptionError) as raised:
        read(**changes)
    return str(raised.value)


def test_the_defaults_are_the_three_sources_without_the_overlay() -> None:
    found = read()
    assert [one.name for one in found.sources] == ["checkpoint", "engram", "overlay"]
    assert [one.name for one in found.wanted] == ["checkpoint", "engram"]
    checkpoint, engram, overlay = found.sources
    assert (checkpoint.hosts, engram.hosts) == (("head",), ("head", "worker"))
    assert checkpoint.files[0].count == 39
    assert [one.count for one in engram.files[:2]] == [1, 1]
    assert overlay.gated and len(overlay.files) == 4
    assert found.options.floor_bytes == 20 * GIB
    assert found.options.rank_bytes == 106 * 10**9
    assert not (found.options.overlay or found.options.prune or found.allow_while_serving)
    assert found.names == {"head": "spark-a", "worker": "spark-b"}


def test_both_hosts_of_a_pair_read_the_same() -> None:
    assert settings_of("spark-a", variables()) == settings_of("spark-b", variables())


def test_what_a_machine_is_asked_lies_below_its_own_home() -> None:
    asked = read().asked("worker")
    assert asked["home"] == "/srv/bob"
    assert asked["places"]["ranks"] == "/srv/bob/.cache/huggingface/tensorfold-dsv41"
    assert {one["revision"] for one in asked["repos"]} >= {"45ee5d0f"}
    assert asked["image"] == "engine:test"


def test_the_engines_image_is_used_wherever_no_other_is_named() -> None:
    for named, image in (("mine:1", "mine:1"), ("", "tensorfold-dsv41:0123456789ab")):
        found = read(tensorfold_service_image=named)
        assert found.options.image_bytes == 25 * 10**9
        assert {found.image, found.cut.image, found.graft.image} == {image}
    assert read(rank_files_image="cutter:1").cut.image == "cutter:1"


def test_the_image_is_that_of_the_wanted_engine() -> None:
    entries = {
        "deepseek": {"unit": "a.service", "image": "a:1"},
        "hikari": {"unit": "b.service", "image": "b:1"},
    }
    for wanted, image in (("deepseek", "a:1"), ("hikari", "b:1"), ("none", "a:1")):
        found = read(tensorfold_service_engines=entries, model_server_wanted=wanted)
        assert found.image == image, wanted


@pytest.mark.parametrize(
    "value", ["x:1", ["X y"], [1], ["--force"]], ids=["text", "blank", "number", "option"]
)
def test_images_to_remove_are_names(value: object) -> None:
    with pytest.raises(DescriptionError, match=r"engine_image_prune is .* a list of names"):
        read(engine_image_prune=value)


def test_extras_are_merged_key_by_key_and_add_sources() -> None:
    mine = {"repo": "me/mine", "revision": "abcdef0", "files": ["*"], "hosts": ["worker"]}
    found = read(weights_sources_extra={"checkpoint": {"revision": "1234567"}, "mine": mine})
    assert found.sources[0].revision == "1234567"
    assert found.sources[0].repo.startswith("Mia-AiLab/")
    assert found.sources[3].hosts == ("worker",)


def test_the_overlay_is_wanted_when_it_is_asked_for() -> None:
    assert [one.name for one in read(ablit_graft_enabled="true").wanted][-1] == "overlay"


@pytest.mark.parametrize(("wanted", "engine"), [(True, 0), (False, "1")])
def test_the_engine_must_not_run_other_weights_than_are_made(wanted: bool, engine: Any) -> None:
    said = refusal(ablit_graft_enabled=wanted, tensorfold_service_ablit=engine)
    assert f"tensorfold_service_ablit is {engine}" in said
    assert f"ablit_graft_enabled is {str(wanted).lower()}" in said
    assert read(ablit_graft_enabled=wanted, tensorfold_service_ablit=int(wanted))


def test_how_the_machines_reach_each_other() -> None:
    found = read().machines
    assert found["head"].user == "ann" and found["worker"].port == 22
    assert found["head"].addresses == ("192.0.2.11", "198.51.100.11", "198.51.100.139")
    assert found["worker"].rails == ("198.51.100.12", "198.51.100.140")
    assert read(ansible_port="2222").machines["head"].port == 2222


def test_how_weights_are_sent_grafted_and_cut() -> None:
    found = read()
    assert (found.transfer.transport, found.transfer.ports) == ("daemon", (8730, 8739))
    assert found.transfer.streams == 4 and found.transfer.limits.bytes_per_second
    assert (found.options.graft, found.graft.tensors, found.graft.recipe) == ("in_place", 104, "")
    assert found.graft.memory_bytes == found.cut.memory_bytes == 16 * GIB
    assert found.cut.command == ("tf-dsv41-rank-cache", "{model}", "{out}", "{rank}", "2")
    assert read(ablit_graft_dtypes_command="").graft.dtypes_command == ()
    assert read(hf_transfer_ports=["9000", "9001"]).transfer.ports == (9000, 9001)


def test_a_machine_is_asked_about_every_image_that_may_be_needed() -> None:
    assert read().asked("head")["images"] == ["engine:test"]
    other = read(rank_files_image="cutter:test", ablit_graft_image="cutter:test")
    assert other.asked("head")["images"] == ["engine:test", "cutter:test"]


def test_values_from_the_command_line_are_text() -> None:
    found = read(
        weights_disk_floor_gib="0.5",
        hf_download_workers="8",
        weights_allow_while_serving="True",
        rank_files_prune_sources="no",
    )
    assert found.options.floor_bytes == GIB // 2
    assert (found.workers, found.allow_while_serving, found.options.prune) == (8, True, False)


def test_limits_beside_a_server_may_be_left_out_one_by_one() -> None:
    caps = {"megabytes_per_second": None, "memory_gib": 2, "io_weight": None, "cpu_weight": 50}
    limits = read(hf_download_while_serving=caps).limits
    assert limits.bytes_per_second is None
    assert limits.caps == {"memory_max": 2 * GIB, "cpu_weight": 50}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights_sources_extra": {"engram": {"revison": "x"}}}, "weights_sources.engram"),
        ({"weights_sources_extra": {"engram": {"revision": "main"}}}, "never a branch"),
        ({"weights_sources_extra": {"engram": {"revision": 12345678}}}, "in quotes"),
        ({"weights_sources_extra": {"engram": {"hosts": ["both"]}}}, "head, worker or both"),
        ({"weights_sources_extra": {"my_own": {}}}, "weights_sources_extra.my_own"),
        ({"weights_sources_extra": {"mine": "me/mine"}}, "weights_sources_extra.mine is 'me/mine'"),
        ({"weights_sources_extra": ["engram"]}, "weights_sources_extra must be a mapping"),
        ({"weights_hub_endpoint": "huggingface.co"}, "weights_hub_endpoint is 'huggingface.co'"),
        ({"weights_disk_order": "fast"}, "one of auto, download_first, minimal"),
        ({"weights_disk_floor_gib": -1}, "weights_disk_floor_gib is -1"),
        ({"weights_disk_floor_gib": "much"}, "weights_disk_floor_gib is 'much'"),
        ({"weights_disk_floor_gib": float("nan")}, "weights_disk_floor_gib is nan"),
        ({"weights_expected_bytes": {"rank_file": 1}}, "rank_file, image, rewritten"),
        ({"weights_allow_while_serving": "perhaps"}, "true or false"),
        ({"weights_adopt_checkpoint": "45ee"}, "at least its first 7 hex digits"),
        ({"weights_adopt_overlay": "stock"}, "or none"),
        ({"ablit_graft_enabled": 1}, "ablit_graft_enabled is 1"),
        ({"ablit_graft_method": "copy"}, "one of in_place, recipe"),
        ({"ablit_graft_tensors": -1}, "from 0 to"),
        ({"ablit_graft_command": "python3 graft.py"}, "a list of words"),
        ({"ablit_graft_command": ["graft", "{src}"]}, "lacks {dst}"),
        ({"ablit_graft_dtypes_command": ["fix", "{model}"]}, "has {model}, but only {src}, "),
        ({"ablit_graft_recipe": "dsv41"}, "an absolute path on the head"),
        (
            {"ablit_graft_method": "recipe", "ablit_graft_enabled": True},
            "ablit_graft_recipe is empty",
        ),
        ({"ablit_graft_image": ["a"]}, "one line of text"),
        ({"ablit_graft_memory_gib": 0}, "from 1 up"),
        ({"rank_files_command": ["cut", "{model}", "{out}"]}, "lacks {rank}"),
        ({"rank_files_command": []}, "lacks {model}, {out}, {rank}"),
        ({"rank_files_image": "a\nb"}, "one line of text"),
        ({"hf_transfer_transport": "scp"}, "one of daemon, ssh"),
        ({"hf_transfer_streams": 0}, "from 1 to 16"),
        ({"hf_transfer_ports": 8730}, "the first and the last of some ports"),
        ({"hf_transfer_ports": [8739, 8730]}, "the first and the last of some ports"),
        ({"hf_transfer_ports": [22, 30]}, "from 1024 to 65535"),
        ({"hf_transfer_while_serving": {"memory_gib": 4}}, "a mapping with megabytes_per_second"),
        ({"hf_download_workers": 0}, "from 1 to 64"),
        ({"hf_download_workers": 2.5}, "a whole number"),
        ({"hf_download_workers": True}, "a whole number"),
        ({"hf_download_while_serving": {"memory_gb": 4}}, "a mapping with megabytes_per_second"),
        ({"hf_download_environment": "https_proxy=x"}, "hf_download_environment must be a mapping"),
        ({"hf_download_environment": {"https proxy": "x"}}, "has 'https proxy', which cannot name"),
        ({"hf_download_environment": {"https_proxy": 3128}}, "environment.https_proxy is 3128"),
        ({"hf_download_environment": {"https_proxy": None}}, "one line of text"),
        ({"hf_download_environment": {"no_proxy": "a\nb"}}, "one line of text"),
    ],
)
def test_a_mistake_is_refused_by_its_name(changes: dict[str, Any], words: str) -> None:
    said = refusal(**changes)
    assert next(iter(changes)).rsplit("_extra", 1)[0] in said
    assert words in said


def test_a_number_in_a_limit_is_checked_by_its_full_name() -> None:
    caps = {"megabytes_per_second": 50, "memory_gib": 4, "io_weight": 20_000, "cpu_weight": 20}
    said = refusal(hf_download_while_serving=caps)
    assert "hf_download_while_serving.io_weight is 20000" in said


def test_both_hosts_must_want_the_same() -> None:
    both = variables()
    both["spark-b"]["weights_disk_order"] = "minimal"
    with pytest.raises(DescriptionError, match="weights_disk_order is 'auto' for spark-a but"):
        settings_of("spark-a", both)


@pytest.mark.parametrize("value", [f"{SECRET} x", f"{SECRET}\n{SECRET}", f"{SECRET}ü", [SECRET]])
def test_a_token_that_cannot_be_one_is_refused_without_showing_it(value: Any) -> None:
    said = refusal(weights_hub_token=value)
    assert "weights_hub_token" in said and SECRET not in said


def test_tokens_that_differ_are_refused_without_showing_them() -> None:
    both = variables(weights_hub_token=SECRET)
    both["spark-b"]["weights_hub_token"] = SECRET[::-1]
    with pytest.raises(DescriptionError) as raised:
        settings_of("spark-a", both)
    assert "weights_hub_token differs between spark-a and spark-b" in str(raised.value)
    assert SECRET not in str(raised.value) and SECRET[::-1] not in str(raised.value)


def test_an_address_with_an_account_in_it_is_refused_without_showing_it() -> None:
    said = refusal(weights_hub_endpoint=f"https://me:{SECRET}@mirror.example")
    assert "weights_hub_endpoint" in said and SECRET not in said


def test_a_proxy_of_either_host_is_for_jobs_and_has_no_account_in_it() -> None:
    proxy = {"https_proxy": "http://proxy.example:3128", "no_proxy": "localhost,.example"}
    read(hf_download_environment=proxy)
    both = variables()
    # Each machine may have its own way out.
    both["spark-b"]["hf_download_environment"] = proxy
    settings_of("spark-a", both)
    for address in (f"http://me:{SECRET}@proxy.example:3128", f"me:{SECRET}@proxy.example:3128"):
        both["spark-b"]["hf_download_environment"] = {"https_proxy": address}
        with pytest.raises(DescriptionError) as raised:
            settings_of("spark-a", both)
        said = str(raised.value)
        assert "hf_download_environment.https_proxy" in said and "spark-b" in said
        assert "everybody can read" in said and SECRET not in said
    for value in (address, {"https_proxy": f"{address}\n"}, {"https_proxy": [address]}):
        assert SECRET not in refusal(hf_download_environment=value)


def test_a_token_is_no_part_of_the_settings() -> None:
    both = variables(weights_hub_token=f" {SECRET}\n")
    assert token_of("spark-a", both) == SECRET
    assert SECRET not in repr(settings_of("spark-a", both))
    assert token_of("spark-a", variables()) == ""
