"""Tables of a file of measurements, with the predictions beside them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.reporting import markdown_table

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """The records of a file; a last line that was cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def to_markdown(records: Sequence[Record]) -> str:
    """One table per name: cases, measured and predicted values and their ratio; then jobs, failures and skips."""
    parts = [f"`{json.dumps(record['environment'])}`" for record in records if "environment" in record]
    for name in dict.fromkeys(record["name"] for record in records if "value" in record):
        found = [record for record in records if record["name"] == name and "value" in record]
        parts.append(f"### {name}\n\n{_table(found)}")
        parts += [_kernels(record) for record in found if "kernels" in record]
    for title, key in (("Failed", "error"), ("Skipped", "skipped")):
        lines = [f"- {_title(record)}: {record[key]}" for record in records if key in record]
        if lines:
            parts.append(f"### {title}\n\n" + "\n".join(dict.fromkeys(lines)))
    return "\n\n".join(parts)


def _table(records: Sequence[Record]) -> str:
    keys = list(dict.fromkeys(key for record in records for key in record["case"]))
    header = [*keys, records[0]["unit"], "predicted", "measured / predicted"]
    return markdown_table(
        header, [[*(record["case"].get(key, "") for key in keys), *_values(record)] for record in records]
    )


def _values(record: Record) -> list[str]:
    value, predicted = record["value"], record["predicted"]
    if not predicted:
        return [f"{value:.4g}", "", ""]
    return [f"{value:.4g}", f"{predicted:.4g}", f"{value / predicted:.2f}"]


def _kernels(record: Record) -> str:
    rows = [[row["kernel"], f"{row['ms']:.4f}", f"{row['calls']:g}"] for row in record["kernels"]]
    return f"{_title(record)}, ms and calls per step:\n\n" + markdown_table(["kernel", "ms", "calls"], rows)


def _title(record: Record) -> str:
    return " ".join([record["name"], *(f"{key}={value}" for key, value in record["case"].items())])
