"""One command line runs all commands, and answers what was typed before and what is mistyped."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from minitransformer.cli import COMMANDS, run_command
from minitransformer.moved import MOVED
from minitransformer.settings import RENAMED, RENAMED_MODULES
from tests.support.own_sheets import HOMEWORK
from tests.support.processes import ROOT, Finished, run
from tests.support.small_runs import trainer_for

CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^|]+)` \| (.+) \|$", CHANGES, flags=re.MULTILINE)
OLD_COMMANDS = [row for row in ROWS if row[0].startswith(("python ", "minitransformer "))]


def start(*command: object, folder: Path) -> Finished:
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True,
        encoding="utf-8", stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory, tiny) -> Path:
    """A folder with what the old commands name."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "runs").mkdir()
    quick = ("training.steps=2", "logging.tensorboard=false")
    trainer_for(folder / "runs" / "copy", *quick, "model.norm=pre").fit()
    (folder / "valid.tsv").write_text("3 1\tone three\n")  # the generated thousand take long
    valid = f"data.valid={folder / 'valid.tsv'}"
    trainer_for(folder / "runs" / "substitute", *quick, "data.train=substitute", valid).fit()
    (folder / "runs" / "tiny").symlink_to(tiny.path)
    (folder / "homework.yaml").write_text(HOMEWORK)
    (folder / "in.txt").write_text("Let's go\n")
    return folder


def run_line(line: str, folder: Path) -> Finished:
    """Run a command as the changelog has it; a module that has moved takes a Python of its own."""
    program, *words = shlex.split(line)
    if program == "minitransformer":
        return run(*words, folder=folder)
    if words[0] == "-m":
        return start(*words, folder=folder)
    return run(*words, folder=folder)


@pytest.mark.parametrize(("before", "now"), OLD_COMMANDS, ids=[row[0] for row in OLD_COMMANDS])
def test_old_command_works_or_is_answered_with_the_new_one(before, now, old_folder):
    result = run_line(before, old_folder)
    if now.startswith("works"):
        assert result.code == 0, result.err
        return
    assert (result.code, result.out) == (2, "")
    [error] = [line for line in result.err.splitlines() if "error: " in line]
    [new] = re.findall("`(.+)`", now)
    words = shlex.split(new)
    options = [word for word in words if word.startswith("--")]
    if "--to" in words and "was replaced" in error:  # by a file, whose ending says what it is
        options = [Path(words[words.index("--to") + 1]).suffix]
    assert any(name in error for name in (" ".join(words[:2]), *options)), error
    followed = run_line(new, old_folder)
    assert followed.code == 0, followed.err


def test_changelog_has_all_renamed_commands_and_settings():
    typed = " ".join(before for before, _ in OLD_COMMANDS)
    assert all(f"python -m minitransformer.{name}" in typed for name in MOVED)
    table = {before: re.findall("`([^`]+)`", now) for before, now in ROWS}
    for old, new in RENAMED.items():
        if old.startswith("hygiene."):
            assert new.keys == (old.replace("hygiene.", "filters."),)
            old, keys = "hygiene.…", ["filters.…"]
        else:
            keys = list(new.keys)
        assert table[old] == keys
    modules = [name for pair in ROWS for cell in pair for name in re.findall(r"\w+", cell)]
    assert {*RENAMED_MODULES, *RENAMED_MODULES.values()} <= set(modules)


def test_help_and_usage_errors_do_not_load_torch():
    """Run all of them in one process, and look at its modules in the end."""
    code = (
        "import sys; from minitransformer.cli import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    for option, expected in (('--help', 0), ('--version', 0), ('--nonsense', 2)):\n"
        "        sys.argv = ['minitransformer', name, option]\n"
        "        try: found = main()\n"
        "        except SystemExit as end: found = end.code\n"
        "        assert found == expected, (name, option, found)\n"
        "print('torch' in sys.modules)"
    )
    result = start("-c", code, folder=ROOT)
    assert result.code == 0, result.err
    assert result.out.endswith("\nFalse\n")
    assert result.err.count("error: there is no option --nonsense") == len(COMMANDS)


def test_help_of_a_command_is_its_own(tmp_path):
    expected = start("-m", "minitransformer", "export", "--help", folder=tmp_path)
    assert expected.out.startswith("usage: python -m minitransformer export ")
    assert start("-m", "minitransformer", "help", "export", folder=tmp_path) == expected


def test_old_module_name_as_an_argument_is_not_a_command(tmp_path):
    arguments = ("translate", "--to", "minitransformer.export", "minitransformer.worked")
    result = start("-m", "minitransformer", *arguments, folder=tmp_path)
    assert (result.code, "there is no trained run" in result.err) == (1, True)
    joined = start("-mminitransformer.worked", folder=tmp_path)
    assert (joined.code, "is now: minitransformer worked list" in joined.err) == (2, True)


@pytest.mark.parametrize("arguments", [["--help"], ["help"], ["-h"], []])
def test_overview_lists_all_commands(arguments, tmp_path):
    result = start("-m", "minitransformer", *arguments, folder=tmp_path)
    assert (result.code, result.err) == (0 if arguments else 2, "")
    assert re.findall(r"^  (\w+)", result.out, flags=re.MULTILINE) == list(COMMANDS)
    assert max(map(len, result.out.splitlines())) <= 100


def test_every_command_has_a_module():
    folder = ROOT / "minitransformer" / "cli"
    assert all((folder / f"{name}.py").is_file() for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tranlsate", "there is no command 'tranlsate': did you mean 'translate'?"),
        ("Let's go", "there is no command 'Let's go': to translate it: minitransformer translate "),
        ("frobnicate", "there is no command 'frobnicate' (there are: train, translate, explain, "),
        ("show lets-go", "there is no command 'show': did you mean minitransformer worked show?"),
        ("evaluate old", "unexpected 'old': did you mean --run old?"),
        ("evaluate my.tsv", "unexpected 'my.tsv': did you mean --input my.tsv?"),
        ("evaluate valid", "unexpected 'valid': did you mean --split valid?"),
        ("train tiny", "unexpected 'tiny': did you mean --config tiny?"),
        ("export exported", "unexpected 'exported'; see minitransformer export --help"),
        (
            "train --steps 50",
            "there is no option --steps: did you mean --set training.steps=VALUE?",
        ),
        ("translate -o x hi", "there is no option -o: did you mean '--to'?"),
        ("doctor tiny.yaml", "unexpected 'tiny.yaml': did you mean --config tiny.yaml?"),
        ("doctor --brake causal", "there is no option --brake: did you mean '--break'?"),
        ("translate --beam x", "argument --beam: invalid int value: 'x'; see "),
        ("evaluate --split valid --to x.txt", "--to x.txt: the name must end in .json"),
        ("evaluate --alignment --split valid", "--split does not go with --alignment"),
        ("export", "name the folder to write, such as --to exported"),
        ("translate --input my.tsv --to my.tsv", "my.tsv would be read and written; choose"),
        ("explain --input my.md --to my.md", "my.md would be read and written; choose"),
        ("evaluate --input a.json --references b.json --to b.json", "b.json would be read and"),
        ("worked check my.md --to my.md", "my.md would be read and written; choose"),
        ("evaluate -- my.tsv", "unexpected 'my.tsv': did you mean --input my.tsv?"),
        ("translate --walkthrough=page.html hi", "--walkthrough takes no value: write minitrans"),
    ],
)
def test_mistyped_command_is_answered_in_one_line(command, message, tmp_path):
    (tmp_path / "old" / "checkpoints").mkdir(parents=True)
    for file in ("my.tsv", "my.md", "a.json", "b.json"):
        (tmp_path / file).touch()
    name, *arguments = [command] if command == "Let's go" else command.split()
    result = run(name, *arguments, folder=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1


def test_train_names_the_next_commands_as_it_was_started(tmp_path, tiny):
    assert "\n  python translate.py --run runs/tiny\n" in tiny.result.out
    settings = ("--set", "training.steps=1", "--set", "logging.tensorboard=false")
    trained = run("train", "--config", "tiny", *settings, folder=tmp_path)
    assert "\n  minitransformer translate --run runs/tiny\n" in trained.out


def test_error_keeps_what_was_printed_before(tmp_path):
    code = (
        "import sys; from minitransformer.cli import run_command\n"
        "def command():\n"
        "    print('kept')\n"
        "    raise OSError(5, 'Input/output error')\n"
        "sys.exit(run_command(command))"
    )
    result = start("-c", code, folder=tmp_path)
    assert result == (1, "kept\n", "error: Input/output error\n")


def test_missing_package_is_named_with_the_python_that_lacks_it(capsys):
    def command() -> int:
        import a_package_that_nobody_has

        return int(a_package_that_nobody_has.code)

    assert run_command(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: a_package_that_nobody_has is not installed for ")
    assert error.count("\n") == 1
