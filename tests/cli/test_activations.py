"""`fastvideo activations`: what it says, and its exit status."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.cli import main as cli
from fastvideo.cli.activation_table import fold
from fastvideo.profiler.strict_json import loads

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = ["condition_embedder.time_embedder.linear_1", "blocks.0", "blocks.1"]
LONG = "model.diffusion.transformer_blocks.17.attn1.to_qkv_projection_lora.default.weight_norm"


def _write(
    path: Path,
    *,
    layers: Any = LAYERS,
    steps: int = 2,
    first: int = 0,
    role: str = "student",
    only: Any = None,
    **wrong: Any,
) -> str:
    """Writes a trace; ``wrong`` is put into the records of blocks.1 of step 1."""
    header = {"kind": "header", "version": 1, "run_id": "r", "rank": 0, "world_size": 1}
    lines = [header, {"kind": "model", "role": role, "modules": layers, **(only or {})}]
    for step in range(first, first + steps):
        for module in layers:
            line = {
                "module": module,
                "tensor": "out",
                "step": step,
                "call": 0,
                "role": role,
                "rank": 0,
                "shape": [1, 8, 4],
                "dtype": "torch.float32",
                "numel": 32,
                "abs_mean": 0.5,
            }
            lines.append(line | (wrong if (step, module) == (1, layers[-1]) else {}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def _diff(*argv: str) -> int:
    return cli.main(["activations", "diff", *argv])


def test_the_same_is_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says how much was compared, and there is no table."""
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b")) == 0
    output = capsys.readouterr().out
    assert "Same: 6 tensors of 3 layers in 2 steps" in output
    assert "Layers that differ" not in output


def test_a_difference_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step, call and layer come first, then the numbers, then the table; 80 columns are enough."""
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b", abs_mean=0.6)) == 1
    output = capsys.readouterr().out
    assert "First difference: step 1, call 0 of student: blocks.1" in output
    assert "abs_mean: 0.5 in A, 0.6 in B" in output
    assert "off by 1.7e-01 of the magnitude; 1.0e-05 is allowed" in output
    assert "1 of 6 tensors differ" in output
    row = next(line for line in output.splitlines() if line.startswith(" blocks.1"))
    assert row.split() == ["blocks.1", "abs_mean", "1", "0.5", "0.6", "1.7e-01", "1"]
    assert max(map(len, output.splitlines()[2:])) <= 80


def test_tolerances_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For all types, or for one."""
    files = _write(tmp_path / "a"), _write(tmp_path / "b", abs_mean=0.6)
    assert _diff(*files, "--rtol", "0.2") == 0
    assert "largest difference: 1.7e-01 of the magnitude" in capsys.readouterr().out
    assert _diff(*files, "--rtol", "bf16=0.2") == 1
    assert _diff(*files, "--atol", "fp32=0.2") == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"nonfinite": {"nan": 3, "+inf": 0, "-inf": 0}},
            "non-finite: all finite in A, 3 nan in B",
        ),
        ({"shape": [1, 4, 4]}, "shape: [1,8,4] in A, [1,4,4] in B"),
        ({"problem": "RuntimeError"}, "unreadable: readable in A, RuntimeError in B"),
    ],
)
def test_kinds_of_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: Any, says: str
) -> None:
    """Each is said in its own words."""
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b", **wrong)) == 1
    assert says in capsys.readouterr().out


def test_missing_layers_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said which side lacks them, and why, as far as the file knows."""
    whole = _write(tmp_path / "a")
    assert _diff(whole, _write(tmp_path / "b", layers=LAYERS[:2])) == 1
    output = capsys.readouterr().out
    assert "B does not trace this layer" in output
    assert "1 layer only in A" in output
    assert _diff(_write(tmp_path / "b", steps=1), whole) == 1
    output = capsys.readouterr().out
    assert "A has nothing of this step" in output
    assert "First only in B: step 1, call 0 of student" in output
    assert "no difference in the 3 tensors that both have" in output
    assert "tensors differ" not in output
    assert "only in B: step 1 (3 tensors)" in output
    assert _diff(_write(tmp_path / "c", steps=9), _write(tmp_path / "b", steps=1)) == 1
    assert "only in A: steps 1 to 8 (24 tensors)" in capsys.readouterr().out


def test_what_a_filter_leaves_out_is_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace says what it was told to record; the rest is compared, and decides the status."""
    whole = _write(tmp_path / "a", steps=3)
    blocks = _write(tmp_path / "b", layers=LAYERS[1:], steps=3, only={"layers": r"^blocks\.\d$"})
    steps = _write(tmp_path / "c", only={"steps": [[0, 1]]})
    for pair in ((whole, blocks), (blocks, whole)):
        assert _diff(*pair) == 0
        output = capsys.readouterr().out
        assert "Same: 6 tensors of 2 layers in 3 steps" in output
        assert r"; only layers ^blocks\.\d$)" in output
        assert "not compared: 3 tensors of " in output
    assert _diff(whole, steps, "--json") == 0
    report = loads(capsys.readouterr().out)
    assert report["left_out"]["filtered_only_in_a"] == 3
    assert report["b"]["filters"] == {"student": [{"layers": None, "steps": [[0, 1]]}]}
    assert _diff(steps, blocks) == 0
    output = capsys.readouterr().out
    assert "not compared: 2 tensors of A that the filter of B leaves out" in output
    assert "not compared: 2 tensors of B that the filter of A leaves out" in output
    assert _diff(whole, _write(tmp_path / "b", layers=LAYERS[2:], only={"layers": "blocks"})) == 1
    output = capsys.readouterr().out
    assert "First only in A: step 0, call 0 of student: blocks.0" in output
    assert _diff(steps, _write(tmp_path / "b", steps=1, first=7, only={"steps": [[7, 7]]})) == 2
    assert "have no tensor in common: the filter of one leaves" in capsys.readouterr().err


def test_another_type_has_another_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has the same type but was computed from one that rounds more needs an option."""
    wrong = {"dtype": "torch.bfloat16", "abs_mean": 0.6}
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b", **wrong)) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "another type in B: 1 tensor, for which the looser tolerance counts; --rtol 1e-2 fits "
        "what has the same type but was computed from bfloat16" in output
    )
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b", dtype="torch.bfloat16")) == 0
    assert "--rtol" not in capsys.readouterr().out


def test_a_torn_file_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace of a killed process is compared as far as it goes."""
    whole = _write(tmp_path / "a")
    torn = tmp_path / "b"
    torn.write_bytes((tmp_path / "a").read_bytes()[:-3])
    assert _diff(whole, str(torn)) == 1
    output = capsys.readouterr().out
    assert "B ends in the middle of this step" in output
    assert "its process was killed" in output


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_names_of_layers_are_folded_at_their_dots(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    """Every part of a name is whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    a = _write(tmp_path / "a", layers=[*LAYERS, LONG])
    b = _write(tmp_path / "b", layers=[*LAYERS, LONG], shape=[1, 32760, 1536, 128])
    assert _diff(a, b) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[2:])) <= columns
    panel = [line.strip("│ ") for line in lines if line.startswith("│")]
    assert panel[0] == "First difference: step 1, call 0 of student:"
    assert "".join(panel[1:-1]) == LONG
    assert all(line.endswith(".") for line in panel[1:-2])
    start = next(at for at, line in enumerate(lines) if line.startswith(" layer"))
    names = [line[: lines[start].index("difference")].strip() for line in lines[start + 2 :]]
    name = names[: names.index("")]
    assert "".join(name) == LONG
    assert all(line.endswith(".") for line in name[:-1])


def test_a_part_that_is_longer_than_a_line_loses_its_middle() -> None:
    """The rest is whole, and nothing is empty."""
    assert fold("blocks.17.to_qkv_projection_lora.bias", 16) == [
        "blocks.17.",
        "to_qkv_p…n_lora.",
        "bias",
    ]
    assert fold("blocks.17", 20) == ["blocks.17"]
    assert fold("blocks.17 → .sample", 12) == ["blocks.17 →", ".sample"]
    assert fold("[1,32760,1536]", 9) == ["[1,32760,", "1536]"]
    assert fold("", 9) == [""]


def test_a_result_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object of strict JSON on standard output, and the same exit status."""
    files = _write(tmp_path / "a"), _write(tmp_path / "b", abs_mean=0.6)
    assert _diff(*files, "--json", "--limit", "1") == 1
    report = loads(capsys.readouterr().out)
    assert (report["same"], report["differing"], report["roles"]) == (False, 1, None)
    assert report["compared"] == {"tensors": 6, "layers": 3, "steps": 2}
    assert (report["a"]["path"], report["a"]["roles"]) == (files[0], ["student"])
    first = report["first"]
    assert (first["module"], first["step"], first["kind"]) == ("blocks.1", 1, "value")
    assert (first["statistic"], first["a"], first["b"]) == ("abs_mean", 0.5, 0.6)
    assert first["off_by"] == pytest.approx(1 / 6)
    assert first["allowed"] == pytest.approx(1e-5, rel=0.1)
    assert [layer["module"] for layer in report["layers"]] == ["blocks.1"]
    assert report["layers"][0]["first"] == first
    assert _diff(files[0], files[0], "--json") == 0
    report = loads(capsys.readouterr().out)
    assert (report["same"], report["first"], report["layers"]) == (True, None, [])
    short = _write(tmp_path / "c", steps=1, problem="RuntimeError")
    nan = _write(tmp_path / "d", nonfinite={"nan": 3})
    assert _diff(nan, short, "--json") == 1
    report = loads(capsys.readouterr().out)
    assert report["steps_only_in_a"] == [{"loop": "", "step": 1, "entry": 0, "tensors": 3}]
    assert (report["first"]["kind"], report["first"]["b"]) == ("only in A", None)
    assert _diff(files[0], str(tmp_path / "none"), "--json") == 2
    assert capsys.readouterr().out == ""


def test_roles_can_be_compared_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both names are said."""
    a = _write(tmp_path / "a", role="transformer")
    b = _write(tmp_path / "b", abs_mean=0.6)
    assert _diff(a, b) == 2
    assert "--map transformer=student compares models of different" in capsys.readouterr().err
    assert _diff(a, b, "--map", "transformer=student") == 1
    output = capsys.readouterr().out
    assert "step 1, call 0 of transformer (B: student): blocks.1" in " ".join(output.split())
    assert _diff(a, b, "--map", "transformer=student", "--json") == 1
    assert loads(capsys.readouterr().out)["roles"] == {"transformer": "student"}
    fewer = _write(tmp_path / "c", layers=LAYERS[:2])
    assert _diff(a, fewer, "--map", "transformer=student") == 1
    assert "B does not trace this layer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["transformer"], "--map transformer: expected two roles"),
        (["a=b", "a=c"], "--map a=c: each role may be compared with one other only"),
        (["a=b", "c=b"], "--map c=b: each role may be compared with one other only"),
        (["student=studnet"], "traces no model of role 'studnet'"),
    ],
)
def test_pairs_of_roles_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: list[str], message: str
) -> None:
    """One line says which."""
    options = [word for pair in pairs for word in ("--map", pair)]
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b"), *options) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_the_table_can_be_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how much it leaves out."""
    files = _write(tmp_path / "a"), _write(tmp_path / "b", layers=LAYERS[:1])
    assert _diff(*files, "--limit", "1") == 1
    output = capsys.readouterr().out
    assert "and 1 more: --limit 0 shows all" in output
    assert " blocks.0 " in output
    assert " blocks.1 " not in output
    assert _diff(*files, "--limit", "0") == 1
    assert " blocks.1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rtoll", "1"], "Did you mean '--rtol'?\nRun 'fastvideo activations diff --help'"),
        (["--limit", "-3"], "argument --limit: expected a whole number of at least 0, got '-3'"),
    ],
)
def test_options_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    """They are known as those of this command, and the nearest is named."""
    with pytest.raises(SystemExit) as end:
        _diff("a", "b", *argv)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything waits for what is written into it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert _diff(str(pipe), str(pipe)) == 2
    assert "pipe must be a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["a", "none"], ["a", "bad"], ["a", "a", "--rtol", "x"]])
def test_mistakes_are_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    """A missing file, one that is no trace, and a tolerance that is no number: one line each."""
    _write(tmp_path / "a")
    (tmp_path / "bad").write_text("no trace\n")
    names = [str(tmp_path / word) if word in {"a", "none", "bad"} else word for word in argv]
    assert _diff(*names) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1


def test_without_rich_it_is_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same facts, with tabs."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rich" else find_spec(name)
    )
    assert _diff(_write(tmp_path / "a"), _write(tmp_path / "b", abs_mean=0.6)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "First difference: step 1, call 0 of student: blocks.1"
    assert "blocks.1\tabs_mean\t1\t0.5\t0.6\t1.7e-01\t1" in lines


def test_it_needs_no_torch(tmp_path: Path) -> None:
    """So it answers at once."""
    program = (
        "import sys; from fastvideo.cli.main import main; status = main(sys.argv[1:]);"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    argv = ["activations", "diff", _write(tmp_path / "a"), _write(tmp_path / "b")]
    subprocess.run([sys.executable, "-c", program, *argv], check=True, capture_output=True)


@pytest.mark.parametrize("option", ["--limit=0", "--json"])
def test_output_that_nobody_reads_is_no_error(tmp_path: Path, option: str) -> None:
    """As that of `| head`: the end is silent, whether much or little was to be said."""
    layers = [f"blocks.{number}" for number in range(200)]
    files = _write(tmp_path / "a", layers=layers), _write(tmp_path / "b", layers=layers[:1])
    command = [sys.executable, "-m", "fastvideo", "activations", "diff", *files, option]
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")


def test_a_terminal_without_the_characters_has_them_escaped(tmp_path: Path) -> None:
    """Names of files and layers are no reason to fail."""
    layers = ["blöcke.0"]
    files = _write(tmp_path / "ä", layers=layers), _write(tmp_path / "b", layers=layers, sum=1)
    run = subprocess.run(
        [sys.executable, "-m", "fastvideo", "activations", "diff", *files],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert r"A  " in run.stdout
    assert r"/\xe4  (run r" in run.stdout


def test_without_an_action_it_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """That lists what there is."""
    assert cli.main(["activations"]) == 0
    assert "compare two traces" in capsys.readouterr().out
