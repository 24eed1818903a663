"""Declared, planned, running: each difference is one line, and secrets are in none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned_ranks import (
    DECLARED,
    ENGRAM,
    FOLLOW,
    HOMES,
    SECRET,
    SERVE,
    SETTINGS,
    dry_run,
    environment,
    told,
)

from spark_pair import engine_planned as planned
from spark_pair.engine_dry_run import parse
from spark_pair.engine_planned import Declared, Expected, Judgement

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")


def expected(declared: Declared = DECLARED, rails: int = 2) -> Expected:
    return Expected(declared, {0: "ds", 1: "ds"}, rails, ("198.51.100.1",), {0: RAILS, 1: RAILS})


def judged(declared: Declared = DECLARED, *, rails: int = 2, **changes: Any) -> Judgement:
    return planned.judge(parse(dry_run(**changes), HOMES), expected(declared, rails))


def both(**changes: str | None) -> tuple[dict[str, str], dict[str, str]]:
    return environment(**changes), environment(**{"TF_DS_ENGRAM": "/e", **changes})


class TestJudge:
    def test_a_plan_as_declared(self) -> None:
        found = judged()
        assert (found.different, found.unknown, found.silent) == ([], [], [])

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            (
                {"env": (environment(), environment(TF_DS_GRAPHS="0", TF_DS_ENGRAM="/e"))},
                "rank 1: TF_DS_GRAPHS is 0, declared 1",
            ),
            ({"name": "other"}, "rank 0: the container is other, declared ds"),
            ({"image": ("image:1", "old:2")}, "rank 1: the image is old:2, declared image:1"),
            (
                {"argv": (SERVE.replace("262144", "131072"), FOLLOW)},
                "rank 0: --context is 131072, declared 262144",
            ),
            (
                {"argv": (SERVE, FOLLOW.replace("--pool 262144", "--pool=131072"))},
                "rank 1: --pool is 131072, declared 262144",
            ),
            ({"argv": (SERVE.replace("8888", "8000"), FOLLOW)}, "rank 0: --port is 8000"),
            (
                {"argv": (SERVE.replace("--no-thinking", "--thinking"), FOLLOW)},
                "rank 0: thinking is 1, declared 0",
            ),
            (
                {"env": both(TF_DS_PREFILL_INTERLEAVE_MS="0")},
                "rank 0: TF_DS_PREFILL_INTERLEAVE_MS is 0, declared 250",
            ),
            (
                {"env": both(TF_TP_MASTER="192.0.2.1")},
                "rank 0: TF_TP_MASTER is 192.0.2.1, and the head's rails are 198.51.100.1",
            ),
            (
                {"env": both(TF_RDMA_DEVICES="rocep1s0f0")},
                "rank 0: TF_RDMA_DEVICES has 1 rail(s) (rocep1s0f0), declared 2",
            ),
            (
                {"env": both(TF_RDMA_DEVICES="rocep1s0f0,rocep1s0f0")},
                "rank 1: TF_RDMA_DEVICES has 1 rail(s) (rocep1s0f0), declared 2",
            ),
            (
                {"env": both(NCCL_IB_HCA="=rocep1s0f0:1,rocep1s0f0:1")},
                "rank 0: NCCL_IB_HCA has 1 rail(s) (rocep1s0f0), declared 2",
            ),
            (
                {"argv": (SERVE, f"{FOLLOW} --rdma rocep1s0f0")},
                "rank 1: --rdma has 1 rail(s) (rocep1s0f0), declared 2",
            ),
            (
                {"env": both(NCCL_SOCKET_IFNAME="enP7s7")},
                "rank 1: NCCL_SOCKET_IFNAME is enP7s7, and the rails of that machine are "
                "enp1s0f0np0, enP2p1s0f0np0",
            ),
            (
                {"env": both(NCCL_SOCKET_IFNAME="enp1s0f0np0,enP7s7")},
                "rank 0: NCCL_SOCKET_IFNAME is enp1s0f0np0,enP7s7, and the rails",
            ),
            (
                {"argv": (SERVE, FOLLOW.replace("198.51.100.1", "192.0.2.9"))},
                "rank 1: an address in its command is 192.0.2.9, and the head's rails are "
                "198.51.100.1",
            ),
            ({"rails": 1}, "declared 1"),
            (
                {"options": ("-v /home/one/hf:/hf", f"-v hf:/hf -v {ENGRAM}:/e")},
                "rank 1: nothing is mounted from /srv/two/hf",
            ),
            (
                {"env": (environment(), environment(TF_DS_ENGRAM="/hf/engram"))},
                f"rank 1: the Engram tables come from /srv/two/hf/engram, declared {ENGRAM}",
            ),
        ],
    )
    def test_a_difference_is_a_line(self, changes: dict[str, Any], line: str) -> None:
        assert any(line in words for words in judged(**changes).different)

    @pytest.mark.fault(38)
    def test_all_of_them_are_listed(self) -> None:
        found = judged(env=both(TF_DS_GRAPHS="0", TF_DS_SPILL="1"), image=("a", "b"))
        assert len(found.different) == 4 and len(found.unknown) == 2

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("TF_DS_SPILL", "1", "is 1, and nobody declared it"),
            ("TF_DS_STREAMS", "4", "is 4, declared 8"),
            ("TF_DS_REASONING_EFFORT", "3", "is 3, declared high"),
            ("TF_TP_PORT", "1", "is 1, declared 29620"),
            ("NCCL_MIN_NCHANNELS", "1", "is 1, declared 4"),
            ("NCCL_MAX_NCHANNELS", "9", "is 9, declared 4"),
            ("NCCL_IB_DISABLE", "1", "is 1, and nobody declared it"),
            ("NCCL_NET", "Socket", "is Socket, and nobody declared it"),
            ("TF_RDMA_TIMEOUT", "1", "is 1, and nobody declared it"),
            ("TF_TP_RING", "1", "is 1, and nobody declared it"),
            ("TF_TP_WORLD", "1", "is 1, and a pair has 2 ranks"),
            ("NCCL_IB_HCA", "^mlx5_2", "is ^mlx5_2, which names rails that are not used"),
            ("NCCL_SOCKET_IFNAME", "^docker0", "is ^docker0, and the rails of that machine"),
            ("NCCL_SOCKET_IFNAME", "enp1", "is enp1, and the rails of that machine"),
        ],
    )
    def test_a_name_that_nobody_promised_is_for_the_operator_to_judge(
        self, name: str, value: str, words: str
    ) -> None:
        declared = Declared({**SETTINGS, "MASTER_PORT": "29620", "NCCL_CHANNELS": "4"})
        found = judged(declared, env=both(**{name: value}))
        assert not found.different
        for rank, line in enumerate(found.unknown):
            assert line.startswith(f"rank {rank}: {name} {words}")
        assert len(found.unknown) == 2

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_IB_HCA", "=rocep1s0f0:1,roceP2p1s0f0:1"),
            ("NCCL_SOCKET_IFNAME", "=enp1s0f0np0,enP2p1s0f0np0"),
            ("NCCL_SOCKET_IFNAME", None),
            ("TF_DS_SERVED_K", "8"),
            ("TENSORFOLD_CUDA_KERNELS", "/kit/aot"),
        ],
    )
    def test_what_the_recipe_sets_by_itself(self, name: str, value: str | None) -> None:
        found = judged(env=both(**{name: value}))
        assert (found.different, found.unknown) == ([], [])

    def test_a_rank_that_is_told_by_its_command_alone(self) -> None:
        words = f"{FOLLOW} --engram /e --rdma rocep1s0f0,roceP2p1s0f0 --side 1 --prefetch 1"
        found = judged(env=(environment(), {}), argv=(SERVE, words))
        assert (found.different, found.unknown) == ([], [])

    def test_without_rails_in_the_inventory_their_names_are_the_recipes(self) -> None:
        free = Expected(DECLARED, {0: "ds", 1: "ds"}, 2)
        output = dry_run(env=both(NCCL_SOCKET_IFNAME="eth0", TF_TP_MASTER="192.0.2.9"))
        found = planned.judge(parse(output, HOMES), free)
        assert (found.different, found.unknown) == ([], [])

    def test_an_interface_of_the_operators_own(self) -> None:
        own = Declared({**SETTINGS, "NCCL_SOCKET_IFNAME": "enP7s7"})
        assert not judged(own, env=both(NCCL_SOCKET_IFNAME="enP7s7")).different

    def test_rails_that_nothing_names_are_unknown(self) -> None:
        silent = both(TF_RDMA_DEVICES=None, NCCL_IB_HCA=None)
        output = dry_run(env=silent, argv=(SERVE, f"{FOLLOW} --rdma rocep1s0f0,roceP2p1s0f0"))
        unlinked = "".join(one for one in output.splitlines(True) if "Link: " not in one)
        assert not planned.judge(parse(output, HOMES), expected()).unknown
        found = planned.judge(parse(unlinked, HOMES), expected())
        assert not found.different
        assert [words.partition(" (")[0] for words in found.unknown] == [
            "rank 0: nothing says which rails it uses"
        ]

    def test_one_rail_where_two_are_there(self) -> None:
        found = planned.judge(parse(dry_run(rails=1), HOMES), expected())
        assert found.different == ["the link has 1 rail(s), declared 2"]

    def test_graphs_of_rank_1_that_nothing_hands_on_are_unknown(self) -> None:
        words = FOLLOW.replace(" --graphs 1", "")
        envs = environment(), environment(TF_DS_ENGRAM="/e", TF_DS_GRAPHS=None)
        assert judged(argv=(SERVE, words)).unknown == []
        assert judged(env=envs).unknown == []
        found = judged(env=envs, argv=(SERVE, words))
        assert not found.different
        assert found.unknown == [
            "rank 1: neither TF_DS_GRAPHS nor --graphs hands it its graphs, declared 1"
        ]

    @pytest.mark.parametrize("name", ["TF_DS_ROUND_ROWS", "TF_DS_GRAPHS"])
    def test_what_must_be_said_and_is_not_is_unknown(self, name: str) -> None:
        found = judged(env=both(**{name: None}))
        assert not found.different
        assert [words.split(",")[0] for words in found.unknown] == [f"rank 0: {name} is not there"]

    def test_what_need_not_be_said_is_only_listed(self) -> None:
        found = judged(env=both(TF_DS_STREAMS=None, NCCL_IB_HCA=None))
        assert (found.different, found.unknown) == ([], [])
        assert found.silent == [
            "rank 0 does not say TF_DS_STREAMS",
            "rank 0 does not say NCCL_IB_HCA",
            "rank 1 does not say TF_DS_STREAMS",
            "rank 1 does not say NCCL_IB_HCA",
        ]

    def test_a_setting_that_was_left_out_is_the_recipes_to_choose(self) -> None:
        free = {key: value for key, value in SETTINGS.items() if key != "PREFILL_INTERLEAVE_MS"}
        assert not judged(Declared(free), env=both(TF_DS_PREFILL_INTERLEAVE_MS="7")).different

    def test_a_variable_of_the_operators_own(self) -> None:
        own = Declared({**SETTINGS, "TF_DS_SPILL": "1", "NCCL_DEBUG": "INFO"})
        assert not judged(own, env=both(TF_DS_SPILL="1", NCCL_DEBUG="INFO")).different
        assert (
            "rank 1: NCCL_DEBUG is WARN, declared INFO"
            in judged(own, env=both(TF_DS_SPILL="1", NCCL_DEBUG="WARN")).different
        )

    @pytest.mark.parametrize("value", [None, ""])
    def test_engram_tables_that_nothing_hands_on(self, value: str | None) -> None:
        found = judged(env=both(TF_DS_ENGRAM=value))
        assert not found.different
        assert [words.partition(" (")[0] for words in found.unknown] == [
            "rank 0: nothing hands it the Engram tables",
            "rank 1: nothing hands it the Engram tables",
        ]
        assert f"declared {ENGRAM}" in found.unknown[1]

    def test_engram_tables_by_an_option(self) -> None:
        words = (f"{SERVE} --engram /hf/engram", f"{FOLLOW} --engram /e")
        found = judged(env=both(TF_DS_ENGRAM=None), argv=words)
        assert (found.different, found.unknown) == ([], [])

    def test_engram_tables_in_the_image_are_none(self) -> None:
        found = judged(
            env=(environment(TF_DS_ENGRAM="/opt/engram"), environment(TF_DS_ENGRAM="/e"))
        )
        assert not found.different
        assert found.unknown == [
            "rank 0: the Engram tables at /opt/engram lie in no folder of its machine"
        ]

    def test_without_declared_tables_nothing_is_asked(self) -> None:
        free = {key: value for key, value in SETTINGS.items() if key != "WORKER_ENGRAM_DIR"}
        assert not judged(Declared(free), env=both(TF_DS_ENGRAM=None)).unknown

    def test_a_key_that_nothing_hands_on(self) -> None:
        declared = Declared({**SETTINGS, "API_KEY": "1"})
        found = judged(declared)
        assert not found.different
        assert [words.partition(" (")[0] for words in found.unknown] == [
            "rank 0: nothing hands it an API key"
        ]
        assert len(judged(declared, env=both(TENSORFOLD_API_KEY="")).unknown) == 1
        assert not judged(Declared({**SETTINGS, "API_KEY": "0"})).unknown

    @pytest.mark.parametrize(
        "words", ["--api-key-file /run/api-key", "--api-key abc", "--api-key=a"]
    )
    def test_a_key_among_the_words(self, words: str) -> None:
        declared = Declared({**SETTINGS, "API_KEY": "1"})
        assert not judged(declared, argv=(f"{SERVE} {words}", FOLLOW)).unknown

    def test_a_key_in_the_environment(self) -> None:
        declared = Declared({**SETTINGS, "API_KEY": "1"})
        assert not judged(declared, env=both(TENSORFOLD_API_KEY="abc")).unknown

    def test_a_secret_is_compared_and_never_shown(self) -> None:
        assert not judged(env=both(HF_TOKEN=SECRET)).different
        (line, _) = judged(env=both(HF_TOKEN="another one")).different
        assert "HF_TOKEN" in line and "another" not in line and SECRET not in line


@pytest.mark.parametrize("folder", ["/srv//two/hf", "/srv/./two/hf", "/srv/two/hf/"])
def test_an_untidy_path_is_the_same_folder(folder: str) -> None:
    found = judged(
        Declared({**SETTINGS, "NFS_VOLUME": folder}),
        env=(environment(), environment(TF_DS_ENGRAM="//e/.")),
    )
    assert (found.different, found.unknown) == ([], [])


def test_the_folders_of_the_weights() -> None:
    ranks = parse(dry_run(), HOMES).ranks
    assert [place for _, place, _ in planned.weight_folders(ranks[0])] == [
        "/home/one/hf/cut",
        "/home/one/hf/engram",
        "/home/one/hf/model",
    ]
    assert [place for _, place, _ in planned.weight_folders(ranks[1])] == [
        "/srv/two/hf/cut",
        ENGRAM,
        "/srv/two/hf/model",
    ]


@pytest.mark.parametrize("option", ["--engram /e", "--engram=/e"])
def test_tables_by_an_option_are_weights_too(option: str) -> None:
    output = dry_run(env=both(TF_DS_ENGRAM=None), argv=(SERVE, f"{FOLLOW} {option}"))
    found = planned.weight_folders(parse(output, HOMES).ranks[1])
    assert ("--engram", ENGRAM) in [(name, place) for name, place, _ in found]


class TestRunning:
    def differences(self, rank: int = 1, **changes: Any) -> list[str]:
        shown = told(rank)
        inspected = shown["inspected"]
        for key, value in changes.items():
            if key in inspected["Config"]:
                inspected["Config"][key] = value(inspected["Config"][key])
            else:
                inspected[key] = value(inspected[key])
        got = planned.seen(inspected)
        return planned.running(rank, parse(dry_run(), HOMES).ranks[rank], got, shown["image_env"])

    def test_as_planned(self) -> None:
        assert self.differences(0) == []
        assert self.differences(1) == []

    def test_variables_of_the_image_are_the_images(self) -> None:
        plan = parse(dry_run(), HOMES).ranks[0]
        got = planned.seen(told(0)["inspected"])
        brought = ["HF_HUB_OFFLINE=1", "TF_DS_KERNELS=/kernels"]
        both = replace(got, env={**got.env, "TF_DS_KERNELS": "/kernels"})
        assert planned.running(0, plan, both, brought) == []
        assert planned.running(0, plan, both, []) == [
            "rank 0: TF_DS_KERNELS is /kernels, and was not planned"
        ]

    def test_a_volume_that_the_image_declares_was_not_chosen(self) -> None:
        own = {"Type": "volume", "Name": "0f" * 32, "Destination": "/data", "RW": True}
        assert self.differences(Mounts=lambda there: [*there, own]) == []

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            (
                {"Env": lambda env: [one.replace("GRAPHS=1", "GRAPHS=0") for one in env]},
                "rank 1: TF_DS_GRAPHS is 0, planned 1",
            ),
            (
                {"Env": lambda env: [one for one in env if "ROUND_ROWS" not in one]},
                "rank 1: TF_DS_ROUND_ROWS is not there, planned 32",
            ),
            (
                {"Env": lambda env: [*env, "TF_DS_SPILL=1", "OTHER=1"]},
                "rank 1: TF_DS_SPILL is 1, and was not planned",
            ),
            ({"Image": lambda _: "old:1"}, "rank 1: the image is old:1, planned image:1"),
            (
                {"Mounts": lambda there: there[:1]},
                "rank 1: nothing is mounted on /hf, planned /srv/two/hf (read only)",
            ),
            (
                {"Mounts": lambda there: [{**one, "RW": True} for one in there[1:]] + there[:1]},
                "rank 1: /hf is /srv/two/hf, planned /srv/two/hf (read only)",
            ),
            (
                {"Cmd": lambda words: [*words, "--aio", "0", "--api-key", "secret"]},
                "rank 1: the command is '… --aio 0 --api-key …', planned '…'",
            ),
            (
                {"Cmd": lambda words: ["other", *words[1:]]},
                "rank 1: the command is 'other ",
            ),
        ],
    )
    def test_differences(self, changes: dict[str, Any], line: str) -> None:
        (found,) = self.differences(**changes)
        assert found.startswith(line)


class TestSecrets:
    @pytest.mark.parametrize("output", [dry_run(env=both(HF_TOKEN=SECRET)), f"x {SECRET} y"])
    def test_a_text(self, output: str) -> None:
        shown = planned.masked(output, DECLARED)
        assert "token's" not in shown and "$value" not in shown

    def test_by_their_names_too(self) -> None:
        text = "-e API_KEY=1 -e SOME_API_KEY=abc -e MAX_TOKENS=5 -e DB_PASSWORD=x -e TF_X=3"
        assert planned.masked(text, None) == (
            "-e API_KEY=1 -e SOME_API_KEY=… -e MAX_TOKENS=5 -e DB_PASSWORD=… -e TF_X=3"
        )

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ('-e HF_TOKEN="hf_a b" -e A=1', "-e HF_TOKEN=… -e A=1"),
            ("-e HF_TOKEN='hf_a b' -e A=1", "-e HF_TOKEN=… -e A=1"),
            ("-e HF_TOKEN=$'hf_\\'a b' -e A=1", "-e HF_TOKEN=… -e A=1"),
            ("-e 'HF_TOKEN=hf_a b' -e 'A=1 2'", "-e 'HF_TOKEN=…' -e 'A=1 2'"),
            ('-e "HF_TOKEN=hf_a b" -e "A=1 2"', '-e "HF_TOKEN=…" -e "A=1 2"'),
            ("-e $'HF_TOKEN=hf_\\'a' -e A=1", "-e $'HF_TOKEN=…' -e A=1"),
            ("-eHF_TOKEN=hf_a\\ b -e A=1", "-eHF_TOKEN=… -e A=1"),
            ("-e 'A=1 2' -e HF_TOKEN=x 'y z'", "-e 'A=1 2' -e HF_TOKEN=… 'y z'"),
            ("-e HF_TOKEN='never closed", "-e HF_TOKEN=…"),
        ],
    )
    def test_however_it_is_quoted(self, text: str, shown: str) -> None:
        assert planned.masked(text, None) == shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("serve m --api-key abc --port 1", "serve m --api-key … --port 1"),
            ("serve m --api-key=abc --port 1", "serve m --api-key=… --port 1"),
            ("serve m --api-key \\\n  'a c' --port 1", "serve m --api-key \\\n  … --port 1"),
            ('serve m "--api-key=a c" --port 1', 'serve m "--api-key=…" --port 1'),
            (
                "--hf-token abc --secret 'x' --db-password y",
                "--hf-token … --secret … --db-password …",
            ),
            (
                "--api-key-file /run/api-key --max-tokens 5",
                "--api-key-file /run/api-key --max-tokens 5",
            ),
        ],
    )
    def test_by_the_option_before_it(self, text: str, shown: str) -> None:
        assert planned.masked(text, None) == shown

    def test_a_short_one_hides_its_own_place_alone(self) -> None:
        declared = Declared({}, {"PIN": "1"})
        assert planned.masked("PIN=1 TF_X=1", declared) == "PIN=… TF_X=1"

    def test_a_rank_to_be_kept(self) -> None:
        rank = parse(dry_run(env=both(HF_TOKEN=SECRET)), HOMES).ranks[0]
        kept = planned.without_secrets(rank, DECLARED)
        assert "HF_TOKEN" not in kept.env and kept.env["TF_DS_GRAPHS"] == "1"
        assert kept.argv == rank.argv
        for words in (("x", SECRET), ("x", "--api-key", "abc"), ("x", "--api-key=abc")):
            assert planned.without_secrets(replace(rank, argv=words), DECLARED).argv == ()


class TestDeclared:
    def test_from_a_generation(self) -> None:
        manifest = {"settings": {"PORT": "8888"}, "secret_settings": ["HF_TOKEN"]}
        text = "# words\nPORT=8888\nHF_TOKEN='a b'\n"
        assert Declared.read(manifest, text) == Declared({"PORT": "8888"}, {"HF_TOKEN": "a b"})

    @pytest.mark.parametrize("manifest", [None, {}, {"settings": 1}, []])
    def test_a_manifest_that_says_nothing(self, manifest: object) -> None:
        assert Declared.read(manifest, "") is None
