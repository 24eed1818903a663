"""Taking a printed start apart: every word as bash reads it, and nothing guessed."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_ranks import ENGRAM, HOMES, dry_run

from spark_pair.engine_dry_run import DryRunError, Mount, Rank, digest, parse
from spark_pair.shell_words import ShellWordsError, commands

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    min_size=1,
    max_size=4,
)


@given(WORDS)
@settings(max_examples=25, deadline=None)
def test_words_come_back_as_bash_quoted_them(words: list[str]) -> None:
    quoted = subprocess.run(
        ["bash", "-c", "printf '%q ' \"$@\"", "bash", *words],
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    ).stdout.decode("utf-8", "surrogateescape")
    assert commands(f"x {quoted}", {}) == [["x", *words]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a && b c", [["a"], ["b", "c"]]),
        ('say "$HOME/x y" ~/z', [["say", "/h/x y", "/h/z"]]),
        ("say ${HOME}/x a~b x#y", [["say", "/h/x", "a~b", "x#y"]]),
        ("say \\\n  more", [["say", "more"]]),
        ('say "a\\"b\\n"', [["say", 'a"b\\n']]),
        ("say '' $'\\x41\\102\\t'", [["say", "", "AB\t"]]),
    ],
)
def test_words(line: str, words: list[list[str]]) -> None:
    assert commands(line, {"HOME": "/h"}) == words


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("say $OTHER", r"\$OTHER"),
        ('say "$(id)"', r"'\$'"),
        ("say `id`", "'`'"),
        ("a; b", "';'"),
        ("a | b", r"'\|'"),
        ("a & b", "single '&'"),
        ("a > b", "'>'"),
        ("say *.x", r"'\*'"),
        ("say {a,b}", "'{'"),
        ("say 'open", "not closed"),
        ('say "open', "open quote"),
        ("say $'open", "open quote"),
        ("say \\", "backslash"),
        ("a && ", "missing beside '&&'"),
        ("say ~other/x", "'~'"),
        ("say # more", "'#'"),
    ],
)
def test_what_only_a_shell_knows_is_refused(line: str, why: str) -> None:
    with pytest.raises(ShellWordsError, match=why):
        commands(line, {"HOME": "/h"})


class TestParse:
    def test_both_ranks(self) -> None:
        plan = parse(dry_run(), HOMES)
        assert plan.rails == 2
        head, worker = plan.ranks[0], plan.ranks[1]
        assert (head.container, head.image, head.network) == ("ds", "image:1", "host")
        assert head.option("--name") == "DeepSeek V4.1"
        assert head.option("--context") == "262144"
        assert head.option("--absent") is None
        assert head.env["TF_DS_ROUND_ROWS"] == "32"
        assert worker.mounts == (
            Mount("/e", ENGRAM, read_only=True),
            Mount("/hf", "/srv/two/hf", read_only=True),
        )
        assert worker.option("--pool") == "262144"

    def test_survives_the_journal(self) -> None:
        for rank in parse(dry_run(), HOMES).ranks.values():
            assert Rank.from_dict(rank.as_dict()) == rank

    @pytest.mark.parametrize(
        ("options", "env", "mounts"),
        [
            ("-eA=1 --env=B=2 -vx:/y", {"A": "1", "B": "2"}, (Mount("/y", "x", volume=True),)),
            (
                "-dit --mount type=bind,src=/a/,dst=/b/,readonly",
                {},
                (Mount("/b", "/a", read_only=True),),
            ),
            ("-v /a//b/./c/:/y/.//z/", {}, (Mount("/y/z", "/a/b/c"),)),
            ("-v //a:/y -v /:/z", {}, (Mount("/y", "/a"), Mount("/z", "/"))),
            ("-v $HOME/x:/y:ro,z", {}, (Mount("/y", "/home/one/x", read_only=True),)),
            ("--net=host --ipc host --rm", {}, ()),
        ],
    )
    def test_forms_of_docker_options(
        self, options: str, env: dict[str, str], mounts: tuple[Mount, ...]
    ) -> None:
        rank = parse(dry_run(options=(options, "")), HOMES).ranks[0]
        assert env.items() <= rank.env.items()
        assert rank.mounts == mounts

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ("--env-file /x", "--env-file is not known"),
            ("--volumes-from other", "--volumes-from is not known"),
            ("-Z 1", "-Z is not known"),
            ("-e SOME", "SOME is taken from the environment of whoever runs it"),
            ("-v /x", "'/x' is not understood"),
            ("-v /a:/y -v /b:/y", "two folders are mounted on /y"),
            ("--mount type=image,src=a,dst=/b", "not understood"),
            ("--label $SOME", r"holds \$SOME"),
        ],
    )
    def test_options_that_are_not_understood(self, options: str, why: str) -> None:
        with pytest.raises(DryRunError, match=f"rank 1: .*{why}"):
            parse(dry_run(options=("", options)), HOMES)

    @pytest.mark.parametrize(
        ("old", "new", "why"),
        [
            ("[dry-run] rank 0 here:", "rank 0:", "no command of rank 0"),
            ("[dry-run] rank 0 here:", "[dry-run] rank 1 on a@b:", "two commands of rank 1"),
            ("[dry-run] rank 0 here:", "[dry-run] both:", "no rank's title"),
            ("docker run", "docker compose up", "'docker compose', not 'docker run'"),
            ("docker run", "podman run", "'podman run', not 'docker run'"),
            ("mkdir -p", "curl x", "runs 'curl' before"),
            ("198.51.100.2:", "198.51.100.2:\n  true ", "runs 'true' before"),
            ("image:1", "\\<WORKER:image\\>", "the worker could not be asked"),
            ("--name ds", "", "has no name"),
        ],
    )
    def test_forms_that_are_not_understood(self, old: str, new: str, why: str) -> None:
        output = dry_run()
        assert old in output
        with pytest.raises(DryRunError, match=why.replace("(", r"\(")):
            parse(output.replace(old, new), HOMES)

    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_a_torn_output_is_understood_or_refused(self, data: st.DataObject) -> None:
        output = dry_run()
        start = data.draw(st.integers(0, len(output)))
        end = data.draw(st.integers(start, min(len(output), start + 40)))
        try:
            parse(output[:start] + data.draw(st.text(max_size=5)) + output[end:], HOMES)
        except DryRunError as error:
            assert str(error)

    def test_a_third_rank(self) -> None:
        more = "[dry-run] rank 2 on c@d:\n  docker run --name x image\n"
        with pytest.raises(DryRunError, match="rank 2"):
            parse(dry_run() + more, HOMES)

    def test_nothing_at_all(self) -> None:
        with pytest.raises(DryRunError, match="no command of rank 0"):
            parse("", HOMES)


def test_an_output_is_named_by_its_sha256() -> None:
    assert digest("x\n") == "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"


@pytest.mark.parametrize(
    "line",
    [
        "[start.sh] DRY_RUN=1: printing the docker commands; nothing is stopped\n",
        "[start.sh] DRY_RUN: ds is running; a real start would stop it first (./stop.sh)\n",
        "DRY_RUN: port 8888 is in use now\n",
    ],
)
def test_what_is_of_the_moment_is_not_in_the_name(line: str) -> None:
    link, *commands = dry_run().splitlines(keepends=True)
    assert digest("".join([line, link, *commands])) == digest("".join([link, line, *commands]))
    assert digest(line + dry_run()) == digest(dry_run())


@pytest.mark.parametrize("line", ["  -e 'X=DRY_RUN: 1'\n", "[dry-run] DRY_RUN: x\n", "other\n"])
def test_and_everything_else_is(line: str) -> None:
    assert digest(dry_run() + line) != digest(dry_run())
