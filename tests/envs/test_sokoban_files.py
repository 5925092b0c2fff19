"""Levels from text files: Boxoban's and Microban's forms, order, splits, and what is refused."""

import pytest

from ragen_envs import check_env, make_env
from ragen_envs.rows import DatasetError
from ragen_envs.sokoban_files import load_levels, parse_level
from ragen_envs.sokoban_search import shortest_plan
from ragen_envs.sokoban_views import grid_text


# In Boxoban's form: a semicolon and a number before each level, no blank lines.
BOXOBAN = """; 0
##########
#        #
# .$@    #
#   #    #
##########
; 1
##########
#     #  #
#  @$ .  #
#        #
##########
"""
# In Microban's: lines of different lengths, no fill on the left, titles and comments around.
MICROBAN = """A collection
by somebody

; 1

  ####
###  ##
#.$@  #
###  ##
  ####
Title: first
Author: somebody #1

 #####
##   #
#  $ ##
# .@  #
#######
; 'second'
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def room(number):
    """One of a family of different levels: a corridor of some length, to be solved in `number % 7 + 1` pushes."""
    gap, tail = number % 7, number // 7
    return f"{'#' * (gap + tail + 6)}\n#@${' ' * gap}.{' ' * tail} #\n{'#' * (gap + tail + 6)}"


def rooms(numbers):
    return "\n\n".join(f"; {number}\n{room(number)}" for number in numbers)


def everything(loaded):
    return [text for texts in loaded.values() for text in texts]


def test_notation():
    level = parse_level("#####\n#@$.#\n#+ *#\n#####".replace("+", " "))
    assert grid_text(level) == "#####\n#PXO#\n#__√#\n#####"
    assert grid_text(parse_level("####\n#+ #\n#-$##\n#__#\n####")) == "#####\n#S_##\n#_X##\n#__##\n#####"


def test_what_lies_outside_is_wall_and_ornaments_are_left_out():
    level = parse_level("  ####\n###  ##\n#*#@$.#\n###  ##\n  ####")
    assert grid_text(level) == "#######\n###__##\n###PXO#\n###__##\n#######"


def test_boxoban_and_microban_files(tmp_path):
    boxoban = everything(load_levels(write(tmp_path / "000.txt", BOXOBAN)))
    microban = everything(load_levels(write(tmp_path / "microban.xsb", MICROBAN)))
    assert sorted(len(shortest_plan(parse_level(text))) for text in boxoban) == [1, 2]
    # The second by hand: round the box (Right, Up), Left, over it (Up, Left), Down.
    assert sorted(len(shortest_plan(parse_level(text))) for text in microban) == [1, 6]


def test_windows_and_foreign_files_are_read(tmp_path):
    path = tmp_path / "levels.sok"
    path.write_bytes(b"\xff caf\xe9\r\n" + BOXOBAN.replace("\n", "\r\n").encode())
    assert len(everything(load_levels(str(path)))) == 2


def test_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name, numbers in (("b.txt", range(20, 30)), ("a.txt", range(10, 20)), ("c/a.xsb", range(30, 40))):
        write(tmp_path / name, rooms(numbers))
    write(tmp_path / "README.md", rooms([99]))
    loaded = load_levels(str(tmp_path))
    for split in ("train", "validation"):
        assert loaded[split] == tuple(text for text in map(room, range(10, 40)) if text in loaded[split])
    assert sum(map(len, loaded.values())) == 30


def test_seeds_go_through_the_levels_in_order(tmp_path):
    path = write(tmp_path / "levels.txt", rooms(range(10, 40)))
    env = make_env("Sokoban-v0", dataset=path, observation_format="grid")
    shown = [env.reset(seed=seed)[0] for seed in range(2 * len(env.levels))]
    expected = [grid_text(parse_level(text)) for text in env.levels]
    assert shown == expected * 2 and len(set(expected)) == len(expected) > 20
    # Without a seed they come at random, and all of that follows from the last seed.
    first = [env.reset(seed=1)[0], *(env.reset()[0] for _ in range(10))]
    assert len(set(first)) > 3
    assert [env.reset(seed=1)[0], *(env.reset()[0] for _ in range(10))] == first


def test_environment_keeps_the_contract_on_loaded_levels(tmp_path):
    path = write(tmp_path / "levels.txt", rooms(range(10, 40)))
    for split in ("train", "validation"):
        for observation_format in ("grid", "coord", "grid_coord", "compact"):
            env = make_env("Sokoban-v0", dataset=path, split=split, observation_format=observation_format)
            check_env(env)
    # Boards differ in size, so the instruction names no last cell; the observation gives the size.
    assert "from (0, 0) at the top left." in env.instruction
    text = make_env("Sokoban-v0", dataset=path, observation_format="coord").reset(seed=0)[0]
    assert text.startswith("Board size: 3 x ")


def test_splits_are_disjoint_and_follow_from_the_levels(tmp_path):
    whole = load_levels(write(tmp_path / "whole.txt", rooms(range(10, 60))))
    part = load_levels(write(tmp_path / "part.txt", rooms(range(30, 60))))
    assert not set(whole["train"]) & set(whole["validation"]) and whole["validation"]
    assert all(set(part[split]) <= set(whole[split]) for split in whole)


def test_published_splits_are_kept(tmp_path):
    write(tmp_path / "unfiltered/train/000.txt", rooms(range(10, 30)))
    # One of these is to be trained on as well; it is kept for validation.
    write(tmp_path / "unfiltered/valid/000.txt", rooms(range(29, 40)))
    write(tmp_path / "unfiltered/test/000.txt", rooms(range(40, 50)))
    loaded = load_levels(str(tmp_path / "unfiltered"))
    assert loaded["train"] == tuple(map(room, range(10, 29)))
    assert loaded["validation"] == tuple(map(room, range(29, 40)))
    write(tmp_path / "fixed/valid/ten.txt", rooms(range(10, 20)))
    assert len(make_env("Sokoban-v0", dataset=str(tmp_path / "fixed"), split="validation").levels) == 10
    with pytest.raises(DatasetError, match="no level in the split 'train'"):
        make_env("Sokoban-v0", dataset=str(tmp_path / "fixed"))


def test_levels_out_of_the_lengths_asked_for_are_passed_over(tmp_path):
    path = write(tmp_path / "valid/levels.txt", rooms(range(10, 40)))
    folder = str(tmp_path)
    env = make_env("Sokoban-v0", dataset=folder, split="validation", min_solution_length=3, max_solution_length=4)
    lengths = [len(env._plan) for seed in range(60) if env.reset(seed=seed)]
    assert set(lengths) == {3, 4} and path
    hard = make_env("Sokoban-v0", dataset=folder, split="validation", min_solution_length=20, max_solution_length=30)
    with pytest.raises(ValueError, match="None of the 30 levels .* shortest solution of 20 to 30 moves; set"):
        hard.reset(seed=0)


def test_limits_fit_the_levels_asked_for(tmp_path):
    path = write(tmp_path / "microban.txt", MICROBAN)
    for split in ("train", "validation"):
        if load_levels(path)[split]:
            env = make_env("Sokoban-v0", dataset=path, split=split, max_solution_length=21)
            assert (env.limits.max_actions, env.limits.max_turns) == (21, 11)
            check_env(env)


def test_levels_are_loaded_once(tmp_path):
    path = write(tmp_path / "levels.txt", rooms(range(10, 40)))
    again = str(tmp_path / ".." / tmp_path.name / "levels.txt")
    assert make_env("Sokoban-v0", dataset=path).levels is make_env("Sokoban-v0", dataset=again).levels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("####\n#  #\n####", "line 1 .* has no player"),
        ("\n\n######\n#@$.@#\n######", "line 3 .* has 2 players"),
        ("######\n#@$  #\n######", "has 1 boxes for 0 targets"),
        ("######\n#@ * #\n######", "is solved from the start"),
        ("######\n#@$. \n######", "is not closed by walls"),
        ("########\n#@$. #$#\n#    #.#\n########", "the player cannot get to"),
        ("6#|#@$. #|6#", "Line 1 .* is run-length encoded"),
        ("Nothing but text #1\n##\n", "has no level"),
        ("#" * 100 + "\n" + ("#" + " " * 98 + "#\n") * 50 + "#" * 100, "52 x 100 cells, more than 4096"),
    ],
)
def test_faulty_levels_are_refused(tmp_path, text, message):
    path = write(tmp_path / "levels.txt", text)
    with pytest.raises(DatasetError, match=message) as error:
        make_env("Sokoban-v0", dataset=path)
    assert "XSB notation" in str(error.value)


@pytest.mark.parametrize("dataset", ["missing.txt", "", " ", 3])
def test_missing_files_are_refused(dataset):
    with pytest.raises(DatasetError, match="no such file or folder"):
        make_env("Sokoban-v0", dataset=dataset)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="is a folder without"):
        make_env("Sokoban-v0", dataset=str(tmp_path))
    with pytest.raises(DatasetError, match="is not one of"):
        make_env("Sokoban-v0", dataset=write(tmp_path / "levels.csv", BOXOBAN))


@pytest.mark.parametrize("kwargs", [{"num_boxes": 2}, {"size": (7, 7)}, {"layout": "open"}, {"generation": "reverse"}])
def test_settings_for_drawing_do_not_go_with_loaded_levels(tmp_path, kwargs):
    path = write(tmp_path / "levels.txt", BOXOBAN)
    with pytest.raises(ValueError, match="does not go with dataset="):
        make_env("Sokoban-v0", dataset=path, **kwargs)


def test_no_level_is_lost_without_a_word(tmp_path):
    rows = "#####\n#@$.#\n#####"
    # A mark of the encoding in front, tabs for blanks, a suffix in capitals.
    for number, text in enumerate((f"\ufeff{rows}\n\n{room(3)}", f"{rows}\n\n############\n#\t@$.#\n############")):
        path = write(tmp_path / f"{number}" / "D.TXT", text)
        assert len(everything(load_levels(path))) == 2
        assert len(everything(load_levels(str(tmp_path / f"{number}")))) == 2
    cut = write(tmp_path / "cut.txt", f"{room(3)}\n\n#####\n#@$.#\n; a remark\n#####")
    with pytest.raises(DatasetError, match="line 5 of .*cut short"):
        load_levels(cut)
