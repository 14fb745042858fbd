"""A benchmark or task: the built-in ones against the real files, files as people have them, one entry with data,
prompt, rule of extraction, judge and Hub id; and what users expect of a run's table."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from run_folders import write_lines
from servers import Reply

from gtpo.common.errors import UserError
from gtpo.common.provenance import text_hash
from gtpo.config import TrainConfig
from gtpo.evalkit.evaluation.plan import choose_engine
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, checksum, find_benchmark, load_problems, presets, way_of_asking
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards.completions import is_no_gold
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verify import Verdict, Verifier
from gtpo.runs.eval_folder import read_prompts
from gtpo.runs.eval_record import read_record


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name, b in BENCHMARKS.items() if b.checksum and not b.extends])
def test_counts_golds_and_ids(name: str, shared_dir: Path) -> None:
    benchmark = BENCHMARKS[name]
    problems = load_problems(benchmark, shared_dir / "data")
    assert len(problems) == benchmark.size
    assert checksum(problems) == benchmark.checksum
    assert benchmark.ids is not None
    assert all(re.fullmatch(benchmark.ids, p.id) for p in problems)
    assert not find_unverifiable([(p.id, p.answer) for p in problems])


def test_the_embedded_benchmarks_do_not_drift() -> None:
    """A change of the generator makes another benchmark: give BENCHMARKS its new checksum on purpose."""
    for name in ("arithmetic", "arithmetic_hard"):
        assert checksum(load_problems(BENCHMARKS[name], None)) == BENCHMARKS[name].checksum


def test_fields_of_other_names(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Nested ones as verl writes them, of a benchmark and of training data; and those of recorded completions."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} + 1?"}], "reward_model": {"ground_truth": str(i + 1)}}
        for i in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    fields = "problem=prompt.0.content,answer=reward_model.ground_truth"
    done = gtpo("eval", "--check", "verl.parquet", "--fields", fields)
    assert "verl/1\n1 + 1?\ngold: 2" in done.stdout
    config = {"run_name": "r", "dataset": {"name": str(tmp_path / "verl.parquet"), "fields": fields}}
    problems = TrainingProblems(TrainConfig.model_validate(config)).load()
    assert {(p.problem, p.answer) for p in problems} == {(f"{i} + 1?", str(i + 1)) for i in range(3)}
    # As lighteval writes them; rows without an id are numbered.
    row = {"doc": {"choices": ["42"]}, "model_response": {"text": ["<answer>42</answer>", "3"]}}
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "own.parquet")
    fields = "gold=doc.choices.0,completions=model_response.text"
    gtpo("eval", "--completions", "own.parquet", "--fields", fields, "--out", "run")
    assert read_record(tmp_path / "run").benchmarks["own"].pass_at_k[1].mean == 0.5
    assert pq.read_table(tmp_path / "run/problems.parquet")["id"].to_pylist() == ["row 0", "row 1"]


@pytest.mark.parametrize("name", ["b", "gsm8k"])
def test_a_benchmark_asks_each_question_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    rows = [{"id": f"{q}-{i}", "problem": f"What is {q}?", "answer": str(q)} for i in range(3) for q in range(2)]
    problems = load_problems(find_benchmark(str(write_lines(tmp_path / f"{name}.jsonl", rows))), None)
    assert [p.id for p in problems] == ["0-0", "1-0"]
    assert "4 of 6 rows repeat the problem and the gold of another" in caplog.text


NO_SPACE = ("proof", "Proof", "notfound", "N/A", "n/a", "-", "None", "null", "nan", "?")
SENTINELS = ("", " ", "No answer", "not found", *NO_SPACE)


def test_golds_that_stand_for_none() -> None:
    assert all(map(is_no_gold, SENTINELS))
    for gold in ("0", "-1", "x", "E", "\\text{undefined}", "\\emptyset", "no real roots", "A"):
        assert not is_no_gold(gold)
    with Verifier(workers=1) as verifier:
        assert {verifier.verify(gold, gold) for gold in SENTINELS} == {Verdict.UNUSABLE_GOLD}
        assert verifier.verify("none", "none", answers="text") is Verdict.CORRECT


def test_rows_without_a_gold_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": f"P{i}?", "answer": answer} for i, answer in enumerate(["1", None, "proof", "4"])]
    problems = load_problems(find_benchmark(str(write_lines(tmp_path / "b.jsonl", rows))), None)
    assert [(p.id, p.answer) for p in problems] == [("b/0", "1"), ("b/3", "4")]
    assert (
        f'2 rows without a gold are left out: {tmp_path}/b.jsonl:2 (""), {tmp_path}/b.jsonl:3 ("proof")' in caplog.text
    )
    with pytest.raises(UserError, match="no row has a gold answer"):
        load_problems(find_benchmark(str(write_lines(tmp_path / "none.jsonl", rows[1:3]))), None)


@pytest.mark.parametrize(
    ("column", "golds"),
    [
        (pa.array([0.1, 2.5], pa.float32()), ["0.1", "2.5"]),
        (pa.array([0.1, 3.0], pa.float64()), ["0.1", "3.0"]),
        (pa.array([Decimal("0.10"), Decimal("7.00")], pa.decimal128(6, 2)), ["0.1", "7"]),
        (pa.array([12, 7], pa.int16()), ["12", "7"]),
    ],
)
def test_numbers_of_parquet(tmp_path: Path, column: pa.Array, golds: list[str]) -> None:
    pq.write_table(pa.table({"problem": ["a?", "b?"], "answer": column}), tmp_path / "b.parquet")
    assert [p.answer for p in load_problems(find_benchmark(str(tmp_path / "b.parquet")), None)] == golds


Gtpo = Callable[..., Any]

# The least that a multiple-choice set needs: nothing but this entry.
CHOICE = {
    "name": "choose", "file": "choose.jsonl", "count": 3, "fields": {"problem": "question"},
    "options": "{letter}) {text}", "prompt": {"user": "{problem}\nEnd with ANSWER: and the letter."},
    "extract": r"ANSWER:\s*\(?([A-Z])", "hub_id": "me/choose:main",
}  # fmt: skip
ROWS = (
    {"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": 1, "subject": "sums"},
    {"question": "1 + 2?", "choices": ["1", "2", "3"], "answer": "C", "subject": "sums"},
    {"question": "2 * 4?", "choices": ["one", "eight"], "answer": "eight", "subject": "products"},
)
SAID = (
    ("ANSWER: B", "<think>ANSWER: B</think>ANSWER: (A)"),
    ("ANSWER: A, no, ANSWER: C", "it is C"),
    ("The answer is B", "ANSWER: B"),
)


@pytest.fixture
def choose(tmp_path: Path) -> Path:
    write_lines(tmp_path / "choose.jsonl", ROWS)
    said = ({"id": f"choose/{i}", "completions": texts, "tokens": [10, 30]} for i, texts in enumerate(SAID))
    write_lines(tmp_path / "said.jsonl", said)
    (tmp_path / "choose.yaml").write_text(yaml.safe_dump(CHOICE))
    return tmp_path


def test_a_multiple_choice_set_is_one_entry(gtpo: Gtpo, choose: Path) -> None:
    score = ("eval", "--completions", "said.jsonl", "--task", "choose.yaml", "--k", "2")
    done = gtpo(*score, "--by", "subject", "--price", "1,1e6")
    record = read_record(choose / "results/eval/said")
    entry = record.benchmarks["choose"]
    assert [(p.answer, p.problem) for p in load_problems(find_benchmark(str(choose / "choose.yaml")), None)][1] == (
        "C", "1 + 2?\nA) 1\nB) 2\nC) 3",
    )  # fmt: skip
    assert (entry.pass_at_k[1].mean, entry.strict and entry.strict.pass_at_k[1].mean) == (0.5, 0.5)
    assert entry.task is not None
    assert entry.task["extract"] == CHOICE["extract"]
    assert entry.tokens_right
    assert entry.tokens_wrong
    assert (entry.tokens_right.median, entry.tokens_wrong.high) == (10, 30)
    assert "choose by subject" in done.stdout
    assert "at least $120.00: 0 prompt and 120 completion tokens" in done.stdout  # the prompts' are not known
    assert "page: gtpo compare" in done.stdout.splitlines()[-1]
    (result,) = yaml.safe_load((choose / "results/eval/said/.eval_results/choose.yaml").read_text())
    assert (result["dataset"], result["value"]) == ({"id": "me/choose", "task_id": "main"}, 50.0)
    assert "n = 2" in result["notes"]
    # Another rule: the stored completions are read anew.
    (choose / "choose.yaml").write_text(yaml.safe_dump(CHOICE | {"extract": "choice"}))
    assert "verified again" in gtpo(*score).stderr
    again = read_record(choose / "results/eval/said").benchmarks["choose"]
    assert again.pass_at_k[1].mean == pytest.approx(4 / 6)
    stored = pq.read_table(choose / "results/eval/said/problems.parquet").column("extract").to_pylist()
    assert stored == ["choice"] * 3
    # A part is no result of the benchmark.
    gtpo(*score, "--limit", "2")
    assert not (choose / "results/eval/said/.eval_results/choose.yaml").exists()


def test_an_expression_without_an_end_is_named_and_a_better_one_goes_on(gtpo: Gtpo, choose: Path) -> None:
    score = ("eval", "--completions", "said.jsonl", "--task", "choose.yaml")
    write_lines(choose / "said.jsonl", [{"id": "choose/0", "completion": f"ANSWER: B{'a' * 40}!"}])
    (choose / "choose.yaml").write_text(yaml.safe_dump(CHOICE | {"extract": "([A-Z](?:a+)+)$"}))
    told = gtpo(*score, code=2).stderr
    assert "the regular expression ([A-Z](?:a+)+)$ comes to no end" in told
    (choose / "choose.yaml").write_text(yaml.safe_dump(CHOICE))
    gtpo(*score)
    assert read_record(choose / "results/eval/said").benchmarks["choose"].pass_at_k[1].mean == 1.0


def test_results_for_the_hub_stay_in_their_folder_and_are_of_a_whole(gtpo: Gtpo, choose: Path) -> None:
    (choose / "choose.yaml").write_text(yaml.safe_dump(CHOICE | {"name": "../choose"}))
    said = [{"id": f"../choose/{i}", "completions": texts} for i, texts in enumerate(SAID)]
    score = ("eval", "--completions", "said.jsonl", "--task", "choose.yaml")
    write_lines(choose / "said.jsonl", said)
    gtpo(*score, "--out", "run")
    assert [path.name for path in choose.glob("run/**/*.yaml")] == ["..-choose.yaml"]
    said[0]["completions"] = [None, "ANSWER: B"]
    write_lines(choose / "said.jsonl", said)
    gtpo(*score, "--out", "lacks")
    assert [path.name for path in choose.glob("lacks/**/*.yaml")] == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"extract": "lenent"}, r"choose\.yaml:2: extract: a name \(strict, lenient, .*found 'lenent'"),
        ({"extract": "("}, "extract: .*missing \\)"),
        ({"prompt": {"user": "Say"}}, r"choose\.yaml:\d+: prompt: user: the template must hold \{problem\}"),
        ({"prompt": {"extends": "boksed"}}, 'extends: there is no protocol "boksed"; known: gtpo'),
        ({"hub": "me/other"}, "give one of file, hub and data"),
        ({"file": None, "data": "gsm8k_test"}, "fields, options would have no effect beside data"),
        ({"judge": {"answers": "txt"}}, "judge.answers: .*'mathematics' or 'text'"),
        ({"extends": ["math"]}, r"choose\.yaml:\d+: extends: there is no task"),
        ({"prompt": {"extends": {"a": 1}}}, "extends: there is no protocol"),
        ({"judge": "text", "answers": "text"}, "judge: .*found 'text'"),
        ({"judge": {"answers": "mathematics"}, "answers": "text"}, "answers: no such key"),
        ({"prompt": {"user": "{problem}", "stop": [""]}}, r"prompt\.stop\.0: .*at least 1 character"),
        ({"prompt": {"user": "{problem}", "thoughts": [["", "x"]]}}, r"prompt\.thoughts\.0\.0: .*at least 1"),
    ],
)
def test_a_mistake_in_an_entry_is_named(choose: Path, changes: dict[str, Any], sentence: str) -> None:
    entry = {key: value for key, value in (CHOICE | changes).items() if value is not None}
    (choose / "choose.yaml").write_text(yaml.safe_dump(entry, sort_keys=True))
    with pytest.raises(UserError, match=sentence):
        find_benchmark(str(choose / "choose.yaml"))


@pytest.mark.parametrize("answer", [3, "D", "two", -1, True])
def test_a_gold_that_is_no_choice_is_named(choose: Path, answer: Any) -> None:
    write_lines(choose / "choose.jsonl", [ROWS[0] | {"answer": answer}])
    with pytest.raises(UserError, match=r"choose\.jsonl:1: the answer .* stands for none of the 3 choices"):
        load_problems(find_benchmark(str(choose / "choose.yaml")), None)


def test_flags_are_checked_against_the_engine_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo.evalkit.evaluation.plan.installed", lambda name: False)
    with pytest.raises(UserError, match="--tensor-parallel-size needs --engine vllm, found transformers"):
        choose_engine(EvalSettings(model="m", benchmarks="gsm8k", tensor_parallel_size=2))


def test_one_run_asks_in_one_way(choose: Path) -> None:
    settings = EvalSettings(model="m", benchmarks="gsm8k")
    own, plain = find_benchmark(str(choose / "choose.yaml")), BENCHMARKS["gsm8k"]
    asked = way_of_asking(settings, [own])
    # What a task says is all that is said.
    assert (asked.system, asked.name) == ("", "choose")
    assert way_of_asking(settings, [plain]) == presets()["gtpo"]
    assert way_of_asking(settings, [BENCHMARKS["gsm8k_lm_eval"]]) == presets()["lm-eval-gsm8k"]
    with pytest.raises(UserError, match="choose and gsm8k are asked in different ways"):
        way_of_asking(settings, [own, plain])
    assert way_of_asking(settings.filled({"protocol": "boxed"}), [own, plain]) == presets()["boxed"]


def test_mmlus_own_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As they lie on the Hub, and in a file of the same shape: a list of choices, the number of the right one."""
    import datasets

    asked = {"question": ["1 + 1?", "2 + 1?"], "subject": ["sums"] * 2, "choices": [list("0123"), list("3120")]}
    features = datasets.Features({
        "question": datasets.Value("string"), "subject": datasets.Value("string"),
        "choices": datasets.Sequence(datasets.Value("string")), "answer": datasets.ClassLabel(names=list("ABCD")),
    })  # fmt: skip
    rows = datasets.Dataset.from_dict(asked | {"answer": [2, 0]}, features=features)
    opened = list[tuple[str, ...]]()
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, split: opened.append((*names, split)) or rows)
    pq.write_table(rows.data.table, tmp_path / "own.parquet")
    (tmp_path / "own.yaml").write_text("extends: mmlu_math\nfile: own.parquet\n")
    for task in (BENCHMARKS["mmlu_math"], find_benchmark(str(tmp_path / "own.yaml"))):
        first, second, *others = load_problems(task, None)
        assert (first.problem, first.answer) == ("1 + 1?\nA. 0\nB. 1\nC. 2\nD. 3", "C")
        assert (second.answer, second.subject, second.answers, second.extract) == ("A", "sums", "text", "choice")
        assert len(others) == (6 if task.hub else 0), "four configs of the Hub"
    assert {(name, split) for name, _, split in set(opened)} == {("cais/mmlu", "test")}


# (protocol, benchmark) -> questions, hash of all their prompts.
ASKED_AS_ELSEWHERE = {
    ("lm-eval-gsm8k", "gsm8k"): (1319, "84119a05b6c77e92"),
    ("lm-eval-gsm8k-cot-zeroshot", "gsm8k"): (1319, "d178f26dfbf4eb9e"),
    ("minerva-math", "math"): (5000, "37e104bcfb39f8b4"),
    ("lm-eval-minerva-math", "math"): (5000, "885206ad8d70dc0f"),
}


@pytest.mark.shared
def test_lm_evals_prompts_to_the_last_byte(shared_dir: Path) -> None:
    """Of GSM8K bench/agreement.py compares them with lm-eval's own. Minerva's are the text of its paper, which
    lm-eval's first minerva_math had; the other is that of its version 3."""
    folder, found = shared_dir / "data", {}
    loaded = {name: load_problems(BENCHMARKS[name], folder) for name in ("gsm8k", "math")}
    for protocol, name in ASKED_AS_ELSEWHERE:
        problems = loaded[name]
        examples = presets()[protocol].examples(problems, folder)
        texts = [presets()[protocol].conversation(p, examples[p.id], "").text or "" for p in problems]
        found[protocol, name] = len(texts), text_hash(*texts)
    assert found == ASKED_AS_ELSEWHERE


def test_like_a_run_with_a_protocol_of_ones_own(gtpo: Gtpo, tiny_model: Path, tmp_path: Path) -> None:
    """Its name says nothing here: the run's own record does."""
    (tmp_path / "own.yaml").write_text('system: Be brief.\nuser: "Say {problem}"\nstop: ["9"]\n')
    gtpo("eval", tiny_model, "-b", "arithmetic", "--limit", "2", "--protocol", "own.yaml", "--max-tokens", "3")
    (tmp_path / "own.yaml").unlink()
    gtpo("eval", tiny_model, "--like", "tiny", "--out", "other")
    first, other = (read_record(tmp_path / place) for place in ("results/eval/tiny", "other"))
    assert (first.prompt.user, first.sampling.stop) == ("Say {problem}", ["9"])
    assert (other.prompt, other.sampling, other.scoring) == (first.prompt, first.sampling, first.scoring)


def test_what_like_takes(gtpo: Gtpo, serve: Any, tmp_path: Path) -> None:
    """All that decides how completions are drawn, but for what another protocol says instead."""
    write_lines(tmp_path / "pool.jsonl", [{"problem": f"E{i}?", "answer": str(i)} for i in range(50)])
    write_lines(tmp_path / "mine.jsonl", [{"problem": f"P{i}?", "answer": a} for i, a in enumerate(("(3", "1", "2"))])
    shown = {"data": str(tmp_path / "pool.jsonl"), "count": 2, "choice": "random", "answer": "{answer}"}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({"fewshot": shown, "system": "Be brief.", "scoring": "strict"}))
    to = ("--base-url", serve().url)
    first = ("-b", "mine.jsonl", "--protocol", "p.yaml", "--extra-body", '{"x": 1}', "--temperature", "0.5")
    gtpo("eval", "m", *to, *first, "--out", "first")
    assert "name it with --benchmarks too" in gtpo("eval", "m", *to, "--like", "first", code=2).stderr
    gtpo("eval", "m", *to, "--like", "first", "-b", "mine.jsonl", "--out", "same")
    gtpo("eval", "m", *to, "--like", "first", "--protocol", "boxed", "--out", "boxed")
    one, same, boxed = (read_record(tmp_path / name) for name in ("first", "same", "boxed"))
    assert (same.prompt, same.sampling) == (one.prompt, one.sampling)
    assert read_prompts(tmp_path / "same") == read_prompts(tmp_path / "first")
    assert (boxed.prompt.system, boxed.scoring, boxed.sampling) == ("", "lenient", one.sampling)


def test_any_text_can_be_the_gold_of_a_task_of_texts(gtpo: Gtpo, tmp_path: Path) -> None:
    golds = ("A+", "C++", "none", "N/A", "007", "x(")
    write_lines(tmp_path / "g.jsonl", [{"id": g, "problem": f"{g}?", "answer": g} for g in golds])
    write_lines(tmp_path / "c.jsonl", [{"id": g, "completion": f"<answer>{g}</answer>"} for g in golds])
    (tmp_path / "g.yaml").write_text("file: g.jsonl\njudge: {answers: text}\n")
    assert "6 of 6 golds verify" in gtpo("eval", "--check", "g.yaml").stdout
    gtpo("eval", "--completions", "c.jsonl", "--task", "g.yaml", "--out", "run")
    assert read_record(tmp_path / "run").benchmarks["g"].verdicts == {"CORRECT": 6}


def test_a_csv_is_read_as_the_same_rows_of_json(gtpo: Gtpo, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "gold": "1,080", "completion": 'so "1080"\n\\boxed{1080}', "tokens": 12, "label": True, "level": 2},
        {"id": "b", "gold": "5", "completion": "", "tokens": None, "label": False, "level": None},
    ]
    with (tmp_path / "mine.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    write_lines(tmp_path / "rows.jsonl", rows)
    found = []
    for name in ("mine.csv", "rows.jsonl"):
        gtpo("eval", "--completions", name, "--out", f"{name}-run")
        (entry,) = read_record(tmp_path / f"{name}-run").benchmarks.values()
        found.append(entry.model_dump(exclude={"source"}))
    assert found[0] == found[1]
    (tmp_path / "bad.csv").write_text("problem,answer\n1 + 1,2,3\n")
    with pytest.raises(UserError, match=r"bad\.csv:2: the row has not as many cells"):
        load_problems(find_benchmark(str(tmp_path / "bad.csv")), None)


def test_files_of_one_stem_have_runs_of_their_own(gtpo: Gtpo, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    golds = {"r.jsonl": "5", "b/r.jsonl": "6"}
    for name, answer in golds.items():
        write_lines(tmp_path / name, [{"id": "q", "gold": "5", "completion": answer}])
    for _ in range(2):
        for name in golds:
            gtpo("eval", "--completions", name)
    folders = sorted((tmp_path / "results/eval").iterdir())
    assert len(folders) == 2
    assert {read_record(f).benchmarks["r"].pass_at_k[1].mean for f in folders} == {0.0, 1.0}


def test_a_budget_ends_a_run_that_goes_on_with_a_larger_one(gtpo: Gtpo, serve: Any, tmp_path: Path) -> None:
    golds = {p.problem: p.answer for p in arithmetic_problems("test")}

    def answer(payload: dict[str, Any], times: int) -> Reply:
        gold = golds.get(payload["messages"][-1]["content"], "0")
        choice = {"message": {"content": f"<answer>{gold}</answer>"}, "finish_reason": "stop"}
        return Reply(body={"choices": [choice], "usage": {"completion_tokens": 6, "prompt_tokens": 4}})

    server = serve(answer)
    run = ("eval", "m", "--base-url", server.url, "-b", "arithmetic", "--limit", "8", "--k", "2", "--concurrency", "1")
    ended = gtpo(*run, "--most_tokens", "50", "--max-tokens", "9", code=3)
    assert "--most-tokens 50 is reached" in ended.stderr
    stored = read_record(tmp_path / "results/eval/m").benchmarks["arithmetic"]
    assert stored.n_asked == 2
    assert "--most-tokens" not in (stored.finish_with or "--most-tokens")
    assert stored.n is None
    asked = len(server.requests)
    again = gtpo(*run, "--most-tokens", "50", "--max-tokens", "9", code=3)
    assert "of 16 samples are missing. The same command" in again.stderr
    assert len(server.requests) == asked
    done = gtpo(*run, "--most-tokens", "500", "--max-tokens", "9", "--price", "1,1")
    assert "$0.00: 64 prompt and 96 completion tokens" in done.stdout
    assert read_record(tmp_path / "results/eval/m").benchmarks["arithmetic"].pass_at_k[2].mean == 1.0


def test_questions_without_a_sample_bind_nothing(gtpo: Gtpo, serve: Any, tmp_path: Path) -> None:
    """Their golds may change, and what was reached of fewer questions is not asked of more."""
    rows = [{"id": f"q{i}", "problem": f"P{i}?", "answer": "1"} for i in range(3)]

    def answer(payload: dict[str, Any], times: int) -> Reply:
        usage = {} if "P2?" in payload["messages"][-1]["content"] else {"completion_tokens": 6, "prompt_tokens": 4}
        return Reply(body={"choices": [{"message": {"content": "1"}, "finish_reason": "stop"}], "usage": usage})

    run = ("eval", "m", "--base-url", serve(answer).url, "-b", "r.jsonl", "--out", "run")
    write_lines(tmp_path / "r.jsonl", rows)
    assert "$0.00: 32 prompt" in gtpo(*run, "--limit", "2", "--k", "4", "--price", "1,1").stdout
    gtpo(*run, "--k", "2", "--most-tokens", "1", code=3)
    rows[2]["answer"] = "2"
    write_lines(tmp_path / "r.jsonl", rows)
    assert "at least $0.00: 16 prompt" in gtpo(*run, "--k", "2", "--price", "1,1").stdout
    entry = read_record(tmp_path / "run").benchmarks["r"]
    assert (entry.n, entry.n_asked, entry.pass_at_k[1].mean) == (2, 2, pytest.approx(2 / 3))
    refused = write_lines(tmp_path / "r.jsonl", [rows[0] | {"answer": "3"}, *rows[1:]])
    assert f"the golds of 1 questions of {refused.stem} (first: q0)" in gtpo(*run, "--k", "2", code=2).stderr


def test_a_budget_ends_a_run_whose_tokens_nobody_counts(gtpo: Gtpo, serve: Any) -> None:
    server = serve()
    run = ("eval", "m", "--base-url", server.url, "-b", "arithmetic", "--concurrency", "1", "--max-tokens", "9")
    assert "does not say the tokens that --most-tokens is to count" in gtpo(*run, "--most-tokens", 50, code=3).stderr
    assert len(server.requests) < 32
    gtpo(*run)


def test_runs_that_read_answers_by_other_rules_are_not_compared(gtpo: Gtpo, choose: Path) -> None:
    for name, rule in (("one", CHOICE["extract"]), ("other", "choice")):
        (choose / "choose.yaml").write_text(yaml.safe_dump(CHOICE | {"extract": rule}))
        gtpo("eval", "--completions", "said.jsonl", "--task", "choose.yaml", "--out", name)
    assert "answers are read by different rules (one: ANSWER" in gtpo("compare", "one", "other", code=2).stderr
