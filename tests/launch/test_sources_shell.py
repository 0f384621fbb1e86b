"""Shell scripts: what words become, which statements are looked at, and what runs at the same time."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from rankbind.finding import Level
from rankbind.launch import sources
from rankbind.launch.command import Command


def commands(text: str, file: str = "a.sh") -> tuple[Command, ...]:
    return sources.commands(file, text).commands


def words(text: str) -> list[list[str]]:
    """The words of commands whose program is ``x``; those that are not certain behind a question mark."""
    return [
        [("" if word.certain else "?") + word.text for word in command.words[1:]]
        for command in commands(text)
        if command.texts[0] == "x"
    ]


WORDS = {
    # quotes and escapes
    "x a 'b c' \"d e\" f\\ g h'i'\"j\"": [["a", "b c", "d e", "f g", "hij"]],
    "x '' \"\" \"\\$a \\\" \\n\" $'t\\tn' $\"l\"": [["", "", '$a " \\n', "t\tn", "l"]],
    'x \'{"e":"tcp://*:\'$((5557 + 1))\'"}\'': [['{"e":"tcp://*:5558"}']],
    "x a \\\n  b # c\nx d;x e&": [["a", "b"], ["d"], ["e"]],
    "x a#b # c": [["a#b"]],
    "x a > log --more b 2>&1": [["a", "--more", "b"]],
    # variables
    "A=1; B=$A$A; x $B ${B} \"$B\" '$B' $A-$B": [["11", "11", "11", "$B", "1-11"]],
    'A="a  b"; x $A "$A" c$A': [["a", "b", "a  b", "ca", "b"]],
    'A=; x $A "$A" b': [["", "b"]],
    "x $A ${A} \"$A:1\" ${A}b": [["?$A", "?${A}", "?$A:1", "?${A}b"]],
    "A=1 B=2\nA=3\nx $A $B": [["3", "2"]],
    "A=1 x $A": [["?$A"]],
    "export A=1; readonly B=2; declare -i C=3; x $A$B$C": [["123"]],
    "A=a; A+=b; x $A; unset A; x $A": [["ab"], ["?$A"]],
    "A=$(date); B=$A:1; x $A $B": [["?$A", "?$A:1"]],
    "x $1 ${1:-d} ${2:-$1} $# $@": [["?$1", "d", "?$1", "?$#", "?$@"]],
    "set -- a b; x $1 $# \"$@\"; shift; x \"$@\"": [["a", "2", "a", "b"], ["b"]],
    # parameters
    "x ${A:-d} ${A-d} ${A:-a b} \"${A:-a b}\" ${A:+y} ${A:?no}": [["d", "d", "a", "b", "a b", "?${A:?no}"]],
    "A=v; x ${A:-d} ${A:+y} ${A:=w}; x ${B:=w} $B": [["v", "y", "v"], ["w", "w"]],
    ": ${A:=5}; x $A": [["5"]],
    "A=a.b.c; x ${A%.*} ${A%%.*} ${A#*.} ${A##*.} ${A/b/x} ${A//./-} ${#A} ${A:2:1} ${A: -1} ${A^^}": [
        ["a.b", "a", "b.c", "c", "a.x.c", "a-b-c", "5", "b", "c", "A.B.C"]
    ],
    "A=pod-3; x --node-rank=${A##*-}": [["--node-rank=3"]],
    "A=B; B=c; x ${!A}": [["c"]],
    # arrays
    'A=(a "b c" $U); A+=(d); x "${A[@]}" ${A[1]} ${#A[@]} "${A[0]}"': [["a", "b c", "?$U", "d", "?${A[1]}", "?${#A[@]}", "?${A[0]}"]],
    'A=(a b c); x ${A[-1]} ${A[1+1]} "${A[@]:1}" "${!A[@]}" ${#A[@]} "${A[*]}"': [["c", "c", "b", "c", "0", "1", "2", "3", "a b c"]],
    'A=(); x "${A[@]}" a': [["a"]],
    "A[0]=a; A[1]=b; x ${A[1]}": [["b"]],
    # arithmetic
    "i=3; x $((5557 + i)) $((i * (2 + 1) % 4)) $((i > 2 ? 10 : 20)) $((0x10 | 1)) $(($i + 1))": [["5560", "1", "10", "17", "4"]],
    "i=0; x $((i++)) $((++i)) $i; ((i += 5)); let i*=2; x $i": [["0", "2", "2"], ["14"]],
    "i=1; x $((0 && i++)) $((1 || i++)) $((0 ? i++ : 7)) $((0 && 1 / 0)) $i": [["0", "1", "7", "0", "1"]],
    "x $((1 / 0)) $((u + 1)) $((08))": [["?$((1 / 0))", "?$((u + 1))", "?$((08))"]],
    "x $((-7 / 2)) $((-7 % 2)) $((2 ** 10)) $((!0)) $((${P:-30000} + 1))": [["-3", "-1", "1024", "1", "30001"]],
    # braces and sequences
    "x {0..3} {a,b}{1..2} a{,b} {x} {01..03} {6..0..3} '{a,b}' {$A,c}": [
        ["0", "1", "2", "3", "a1", "a2", "b1", "b2", "a", "ab", "{x}", "01", "02", "03", "6", "3", "0", "{a,b}", "?$A", "c"]
    ],
    "x $(seq 0 2) $(seq 3) `echo a b` \"$(echo a b)\" $(basename /a/b) $(hostname) $(expr 1 + 2)": [
        ["0", "1", "2", "1", "2", "3", "a", "b", "a b", "b", "?$(hostname)", "3"]
    ],
    "N=2; x $(seq 0 $((N - 1)))": [["0", "1"]],
}  # fmt: skip


@pytest.mark.parametrize("text", WORDS)
def test_what_words_become(text: str) -> None:
    assert words(text) == WORDS[text]


STATEMENTS = {
    "for i in a b; do x $i; done; x $i": [["a"], ["b"], ["b"]],
    "for i in 0 1; do for j in 0 1; do x $((i * 2 + j)); done; done": [["0"], ["1"], ["2"], ["3"]],
    "for ((i = 0, j = 9; i < 2; i++)); do x $i $j; done": [["0", "9"], ["1", "9"]],
    "x é𝒳; for ((i = 0; i < 2; i++)); do x $i; done; ((i == 2)) && x é": [["é𝒳"], ["0"], ["1"], ["é"]],
    "for i in $(cat f) z; do x $i; done": [["?$i"], ["z"]],
    "i=0; while (( i < 2 )); do x $i; i=$((i + 1)); done": [["0"], ["1"]],
    "i=0; until [ $i -ge 2 ]; do x $i; ((i++)); done": [["0"], ["1"]],
    "while read -r h; do x $h; done < f": [["?$h"]],
    "while true; do x a; done; x b": [["a"], ["b"]],
    # conditions
    "A=1; if [ $A = 1 ]; then x a; else x b; fi": [["a"]],
    "A=2; if [ $A -eq 1 ]; then x a; elif [[ $A == 2* ]]; then x b; else x c; fi": [["b"]],
    "if [ $A = 1 ]; then x a; elif y; then x b; else x c; fi": [["a"], ["b"], ["c"]],
    "if [ -z \"$A\" ]; then A=8; fi; x $A": [["8"]],
    "A=1; if [ -n \"$A\" ] && [ ! $A = 2 ]; then x a; fi; [[ $A == 1 || $U == 2 ]] && x b; ((A > 1)) || x c": [["a"], ["b"], ["c"]],
    "if y; then A=1; else A=2; fi; x $A": [["?$A"]],
    "if y; then A=1; else A=1; fi; x $A": [["1"]],
    "B=0; y && B=1; x $B": [["?$B"]],
    "case a in b) x b;; a|c) x a;; *) x d;; esac": [["a"]],
    "case $U in b) x b;; *) x d;; esac": [["b"], ["d"]],
    "R=1; case $R in 0) x h;; *) x w;; esac": [["w"]],
    # groups
    "A=1; (A=2; x $A); x $A; { A=3; }; x $A": [["2"], ["1"], ["3"]],
    "x a | x b && x c || x d; ! x e; x f & x g": [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]],
    "cat <<E\nx no $A\nE\nx a <<< b; cat <<-'E' | x c\n\tx no\n\tE\n": [["a"], ["c"]],
    "f() { x $1 \"$@\"; }; f 1 '2 3'": [["1", "1", "2 3"]],
    "function f { local p=$1; x $p; }; f 1; f 2; x $p": [["1"], ["2"], ["2"]],
    "f() { x $1; }": [["?$1"]],
    "f() { x a; f; }; f": [["a"]],
    "eval x a; eval \"x $U\"": [["a"]],
    "mapfile -t A < <(seq 2 3); x ${A[1]}; read -r B; x $B; readarray -t C <<< \"$(echo a b)\"; x ${C[0]}": [["3"], ["?$B"], ["a"]],
}  # fmt: skip


@pytest.mark.parametrize("text", STATEMENTS)
def test_which_statements_are_looked_at(text: str) -> None:
    assert words(text) == STATEMENTS[text]


STARTERS = [
    "exec x a", "nohup x a &", "env A=1 x a", "env -i -u B A=1 x a", "time x a", "command x a", "setsid -w x a",
    "sudo -u me -E B=1 x a", "nice -n 5 x a", "ionice -c2 -n 0 x a", "taskset -c 0-3 x a", "taskset 0xff x a",
    "numactl -N0 -m 0 x a", "numactl --cpunodebind=0 --membind 0 -- x a", "timeout -s KILL 5m x a", "stdbuf -oL -e0 x a",
    "chrt -f 99 x a", "bash -c 'x a'", "sh -ec 'x a'", "bash --norc -lc 'x a'", "bash -c 'x \"$1\"' n a",
    "bash -c \"bash -c 'x a'\"", "uv run x a", "uv run --with foo x a", "conda run -n e --no-capture-output x a",
    "nsys profile -o f --trace=cuda x a", "tmux new -d -s n 'x a'", "tmux new-session -d -s n x a",
    "tmux send-keys -t n 'x a' Enter", "srun x a", "srun -N1 -n1 --gres=gpu:8 --overlap x a", "mpirun x a",
    "docker run --rm -it --gpus all --shm-size 1g -v /a:/b --network=host i x a", "podman run -dit i:1 x a",
    "docker exec -it -e A=b c x a", "apptainer exec --nv -B /a i.sif x a", "ssh -p 22 me@h x a", "ssh h 'x a'",
    "sudo docker run --net host i bash -c 'x a'", "srun --mpi=pmix numactl -l bash -c 'exec x a'",
]  # fmt: skip


@pytest.mark.parametrize("text", STARTERS)
def test_what_only_starts_something_is_left_out(text: str) -> None:
    assert words(text) == [["a"]]


def test_the_environment_is_what_is_exported() -> None:
    (command,) = commands("A=1; export B=2 C=$U; D=3 E=$A x\nF=4")

    assert {name: (word.text, word.certain) for name, word in command.environment.items()} == {
        "B": ("2", True), "C": ("$U", False), "D": ("3", True), "E": ("1", True),
    }  # fmt: skip


def test_containers_have_an_environment_and_a_namespace_of_their_own() -> None:
    text = (
        "export A=1 B=2\ndocker run -e A -e C=3 --name n i x\ndocker run --network container:n i x\ndocker exec n x\n"
    )
    one, two, three = commands(text)

    assert {name: word.text for name, word in one.environment.items()} == {"A": "1", "C": "3"}
    assert one.host == two.host == three.host == "n"
    assert one.bare is not None
    assert three.bare is None


def test_unnamed_containers_are_told_apart() -> None:
    hosts = {command.host for command in commands("docker run i x\ndocker run i x\ndocker run --net host i x\n")}

    assert hosts == {"the container of a.sh:1", "the container of a.sh:2", None}


@pytest.mark.parametrize(
    ("option", "ports"),
    [
        ("8000:80", [("", 8000, 80)]),
        ("127.0.0.1:8000:80", [("127.0.0.1", 8000, 80)]),
        ("[::1]:8000:80", [("::1", 8000, 80)]),
        ("8000-8001:80-81/tcp", [("", 8000, 80), ("", 8001, 81)]),
        ("8000", []),
        ("53:53/udp", []),
        ("8000-8001:80", []),
        ("99999:80", []),
        ("$U:80", []),
    ],
)
def test_published_ports(option: str, ports: list[tuple[str, int, int]]) -> None:
    (command,) = commands(f"docker run -p {option} i x")

    assert [(port.address, port.port, port.target) for port in command.published] == ports
    assert all(port.host is None for port in command.published)


def test_names_are_those_of_lines_and_containers() -> None:
    text = "x\nbash -c '\nx'\ndocker run --name n i x\nf() {\n x; }\nf"
    assert [command.name for command in commands(text)] == ["line 1", "line 3", "n", "line 6"]


def test_places_are_those_of_what_is_written() -> None:
    text = "A=(--a 'b c'); B='--d e'\nx \"${A[@]}\" $B \"$C\" $((1+1)) --f=$B # g\n"
    (command,) = commands(text)
    lines = text.splitlines()

    shown = [lines[word.span.line - 1][word.span.column - 1 :][: word.span.length] for word in command.words]
    assert shown == ["x", "--a", "'b c'", "--d", "e", '"$C"', "$((1+1))", "--f=", "e"]
    assert [word.span.line for word in command.words] == [2, 1, 1, 1, 1, 2, 2, 2, 1]


def test_places_in_lines_with_other_letters() -> None:
    text = "x 'é𝒳' \"$A\" --b\n"
    (command,) = commands(text)

    assert [(word.span.column, word.span.length) for word in command.words] == [(1, 1), (3, 4), (8, 4), (13, 3)]


def test_carriage_returns_are_blanks() -> None:
    assert words("A=1\r\nx a $A \\\r\n  b\r\nx c\r\n") == [["a", "1", "b"], ["c"]]


# What runs at the same time

BESIDE = {
    "x 1\nx 2": "",
    "x 1 &\nx 2": "12",
    "x 1 &\nwait\nx 2": "",
    "x 1 &\nx 2 &\nwait\nx 3": "12",
    "x 1 &\nP=$!\nbench\nkill $P\nx 2 &": "",
    "x 1 &\npkill -f x; x 2": "",
    "pkill -f x; x 1 & x 2": "12",
    "x 1 & kill -0 $!; x 2": "12",
    "if y; then x 1 & else x 2 & fi; x 3": "13 23",
    "if y; then x 1; else x 2; fi": "",
    "case $U in a) x 1 & ;; b) x 2 & ;; *) x 3 & ;; esac": "",
    "for i in 1 2; do x $i & done; wait; x 3": "12",
    "for i in 1 2; do x $i; done": "",
    "for i in 1 2; do x $i & wait; done": "",
    "(x 1; x 2) & x 3": "13 23",
    "(x 1 &); x 2": "12",
    "x 1 | x 2": "12",
    "x 1 && x 2": "",
    "{ x 1 && x 2; } & x 3": "13 23",
    "docker run -d i x 1; x 2; docker rm -f c; x 3": "12",
    "tmux new -d 'x 1'; tmux new -d 'x 2'": "12",
    "bash -c 'x 1 & x 2'; x 3": "12 13",
    "ssh h 'x 1' & ssh h 'x 2'": "12",
    "f() { x $1 & }; f 1; f 2; wait; f 3": "12",
    "f() { x 1 & }; g() { x 2; }; f; g": "12",
    "nohup x 1 > log 2>&1 &\nx 2": "12",
    "(x 1; wait) & x 2 & x 3": "12 13 23",
}


@pytest.mark.parametrize("text", BESIDE)
def test_what_runs_at_the_same_time(text: str) -> None:
    found = [command for command in commands(text) if command.texts[0] == "x"]

    pairs = {
        "".join(sorted((one.texts[1], other.texts[1])))
        for at, one in enumerate(found)
        for other in found[:at]
        if one.beside(other)
    }
    assert " ".join(sorted(pairs)) == BESIDE[text]
    assert all(one.beside(other) == other.beside(one) for one in found for other in found)


def test_scripts_run_beside_each_other() -> None:
    (one,), (other,) = commands("x", "a.sh"), commands("x", "b.sh")

    assert one.beside(other)


# What cannot be read


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("x\ny 'a\n", 2, 3), ("if x; then\ny\n", 3, 1), ("for i in a; do\nx\n", 3, 1), ("x $(y\n", 2, 1)],
)
def test_a_script_that_does_not_end(text: str, line: int, column: int) -> None:
    found = sources.commands("a.sh", text)

    (finding,) = found.findings
    assert finding.code == "RB901"
    assert finding.level is Level.ERROR
    assert (finding.labels[0].span.line, finding.labels[0].span.column) == (line, column)


def test_a_spot_that_the_grammar_does_not_know_leaves_the_rest() -> None:
    found = sources.commands("a.sh", "x a\ny )\nx b\n")

    assert [command.texts for command in found.commands][::2] == [("x", "a"), ("x", "b")]
    assert [(finding.code, finding.level, finding.labels[0].span.line) for finding in found.findings] == [
        ("RB609", Level.NOTE, 2)
    ]


def test_a_loop_without_end_is_left_with_a_note() -> None:
    found = sources.commands("a.sh", "for i in {1..4000}; do for j in {1..4000}; do x; done; done")

    assert found.commands
    assert [finding.level for finding in found.findings] == [Level.NOTE]
