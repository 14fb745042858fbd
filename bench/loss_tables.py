"""The tables of bench.loss: all of a file as text, the page's part of it in Markdown, and the marks that it misses."""

from __future__ import annotations

from typing import Any

BASES = {"trl": "trl fused lm_head", "liger": "liger grpo", "full": "full logits", "bare": "bare matmuls"}


def blocks(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a report; those of the first reports lack what there was one of."""
    return [{"model": None, "gate": "on", "busy": 0, "completions": 8} | block for block in report["blocks"]]


def ratio(block: dict[str, Any], other: str, key: str = "seconds") -> float | None:
    """Return ours over another contender's, None where one of them was not measured."""
    rows = block["contenders"]
    ours, theirs = rows.get("ours/torch", {}).get(key), rows.get(other, {}).get(key)
    return ours / theirs if ours is not None and theirs else None


def table(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = []
    for block in blocks(report):
        rows = block["contenders"]
        beside = f", beside {block['busy']} busy process(es)" if block["busy"] else ""
        lines += [
            "",
            f"N x D x V {block['shape']} {block['model'] or ''}, lm_head {block['head']}, gate {block['gate']} "
            f"({block['completions_kept']} of {block['completions']} kept), {block['device']} {block['dtype']}, "
            f"{block['threads']} thread(s){beside}, load average {block['load_average']:.1f}",
            f"{'':27}{'ms':>9}{'min-max':>15}" + "".join(f"{'/' + key:>7}" for key in BASES) + f"{'extra MiB':>10}"
            f"{'/full':>6}{'+ returned':>11}{'tokens/GiB':>11}{'dlogp':>9}{'dH':>9}{'dhidden':>9}{'dlm_head':>9}",
        ]
        for name, row in rows.items():
            if "seconds" not in row:
                lines.append(f"{name:27}{row.get('failed') or row.get('skipped')}")
                continue
            times, error = row["all_seconds"], row.get("error_to_float64", {})
            ratios = "".join(
                f"{row['seconds'] / rows[base]['seconds']:7.2f}" if "seconds" in rows.get(base, {}) else f"{'-':>7}"
                for base in BASES.values()
            )
            span = f"{min(times) * 1e3:.0f}-{max(times) * 1e3:.0f}"
            full = rows.get("full logits", {}).get("extra_bytes")
            memory = f"{row['extra_bytes'] / full:6.2f}" if full else f"{'-':>6}"
            cells = "".join(
                f"{error[key]:9.0e}" if key in error else f"{'-':>9}"
                for key in ("logp", "entropy", "dhidden", "dlm_head")
            )
            returned = f"{row['returned_bytes'] / 2**20:11.1f}" if "returned_bytes" in row else f"{'-':>11}"
            lines.append(
                f"{name:27}{row['seconds'] * 1e3:9.1f}{span:>15}{ratios}{row['extra_bytes'] / 2**20:10.1f}{memory}"
                f"{returned}{row.get('tokens_in_1_gib', '-'):>11}{cells}  {row['note']}"
            )
    return "\n".join([*lines, "", *(misses(report) or ["every mark is met"])])


def page(report: dict[str, Any]) -> str:
    """Return the table of docs/one_pass.md."""
    lines = [
        "| N x D x V | lm_head, threads | time / TRL's fused lm_head | / Liger | / full logits | / bare matmuls "
        "| extra memory, MiB | / full logits | returned, MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for block in sorted(blocks(report), key=_place):
        ours = block["contenders"]["ours/torch"]
        found = [ratio(block, name) for name in BASES.values()]
        times = " | ".join("-" if value is None else f"{value:.2f}" for value in found)
        extra = ratio(block, "full logits", "extra_bytes")
        what = block["head"] + (", gate off" if block["gate"] == "off" else "")
        what += f", {block['completions']} completions" if block["completions"] != 8 else ""
        threads = f"{block['threads']}" + (f" beside {block['busy']} busy" if block["busy"] else "")
        returned = f"{ours['returned_bytes'] / 2**20:.0f}" if "returned_bytes" in ours else "-"
        model = f" ({block['model']})" if block["model"] else ""
        lines.append(
            f"| {block['shape'].replace('x', ' x ')}{model} | {what}, {threads} | {times} "
            f"| {ours['extra_bytes'] / 2**20:.0f} | {'-' if extra is None else f'{extra:.2f}'} | {returned} |"
        )
    return "\n".join(lines)


def _place(block: dict[str, Any]) -> tuple[Any, ...]:
    tokens, features, vocabulary = (int(part) for part in block["shape"].split("x"))
    return (
        block["busy"],
        features,
        vocabulary,
        tokens,
        block["head"],
        block["gate"] == "off",
        block["completions"],
        block["threads"],
    )


def misses(report: dict[str, Any]) -> list[str]:
    """Return a line for every expected mark that a block misses; blocks beside busy processes have none."""
    lines = []
    for block in blocks(report):
        if block["busy"]:
            continue
        tokens, features, _ = (int(part) for part in block["shape"].split("x"))
        marks: list[tuple[str, str, float]] = [(name, "seconds", 1.0) for name in list(BASES.values())[:3]]
        marks += [("trl full logits", "seconds", 1.0)]
        if features >= 2048 and block["head"] == "frozen":
            marks.append(("bare matmuls", "seconds", 1.08))
        if features >= 2048 and block["head"] == "trainable" and tokens >= 512:
            marks.append(("bare matmuls", "seconds", 1.12))
        if tokens >= 1024:
            marks.append(("full logits", "extra_bytes", 0.25))
        for name, key, most in marks:
            found = ratio(block, name, key)
            if found is not None and found > most:
                where = f"{block['shape']} {block['head']}, gate {block['gate']}, {block['threads']} thread(s)"
                where += f", {block['completions']} completions" if block["completions"] != 8 else ""
                lines.append(f"missed: {where}: {key} / {name} {found:.2f}, mark {most}")
    return lines
