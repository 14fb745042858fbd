"""Files and run folders: written whole or not at all, held by one process, read with the place of the error."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo.common.errors import DISK_FULL, UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import yaml
    from filelock import FileLock


def check_writable(flag: str, path: Path, *, folder: bool) -> None:
    """Raise UserError if `path` cannot become the file (folder) that the flag asks for."""
    if path.exists() and path.is_dir() != folder:
        fault = "there is a file of that name; name a folder" if folder else "that is a folder; name a file in it"
        raise UserError(f"{flag} {path}: {fault}")
    place = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())
    try:
        # os.access says yes to root, in /proc too.
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        raise UserError(f"{flag} {path}: {place} cannot be written to") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, flush it to disk, and rename it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # A full disk does not say which file did not fit.
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text` by write-then-rename."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON by write-then-rename. NaN and infinities are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table by write-then-rename."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_bytes(path, sink.getvalue().to_pybytes())


def read_json(path: Path, newest: int | None = None) -> dict[str, Any]:
    """Parse a JSON file that holds an object. Raises UserError naming the file, line and column of the error.

    newest: the schema version up to which it can be read, if it has one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise UserError(f"{path}: not valid JSON ({str(error).split(';')[0]})") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(document).__name__}")
    if newest is not None:
        check_schema_version(path, int(document.get("schema_version", 0)), newest)
    return document


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yield (line number, object) for each line of a JSONL (or .jsonl.gz) file; blank lines are skipped.

    Lines end at `\n` only: U+2028 stands inside real GSM8K text and must not split a row. Raises UserError
    with file and line number on a broken line, and on a file without a single row.
    """
    rows = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8" if number > 1 else "utf-8-sig"))
                except UnicodeDecodeError:
                    raise UserError(f"{path}:{number}: not UTF-8 text; iconv -f utf-16 -t utf-8 converts it") from None
                except ValueError as error:
                    # A number of more than 4,300 digits is a ValueError too.
                    raise UserError(f"{path}:{number}: not a JSON object ({str(error).split(';')[0]})") from None
                if b"\\ud" in line.lower():
                    # Half a character, which JSON may name, fits no Parquet file.
                    row = json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
                rows += 1
                yield number, row
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: damaged gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if rows == 0:
        raise UserError(f"{path}: the file is empty; expected one JSON object per line")


# Line of each key, by its parts.
Lines = dict[tuple[str, ...], int]


def read_yaml(
    path: Path, what: str = "keys with values", loader: type[yaml.SafeLoader] | None = None
) -> tuple[dict[str, Any], Lines]:
    """Return the mapping in a file, and the line of each of its keys.

    what: is expected in it, as a message says it. UserError if the file is missing, damaged, or holds no mapping.
    """
    import yaml

    loader = loader or yaml.SafeLoader
    try:
        text = path.read_text(encoding="utf-8")
        node, lines = yaml.compose(text, loader), Lines()
        _note_lines(path, node, (), lines)
        values = {} if node is None else yaml.load(text, loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{place}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected {what}, found {type(values).__name__}")
    return values, lines


def _note_lines(path: Path, node: Any, above: tuple[str, ...], lines: Lines) -> None:
    for key_node, value in node.value if getattr(node, "id", "") == "mapping" else ():
        key, line = (*above, str(key_node.value)), key_node.start_mark.line + 1
        if key in lines:
            raise UserError(f'{path}:{line}: duplicate key "{".".join(key)}" (first at line {lines[key]})')
        lines[key] = line
        _note_lines(path, value, key, lines)


def lock_folder(folder: Path, *, again: bool = False) -> FileLock:
    """Make `folder` and take it for this process, until the lock is released or the process ends.

    again: this process may hold it already, by a lock that was taken so too. Raises UserError if another process holds
    it, naming that process, and if it cannot be written, and OSError if the disk is full.
    """
    from filelock import FileLock, Timeout

    holder = folder / ".lock-holder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", is_singleton=again)
        lock.acquire(timeout=0)
        holder.write_text(f"process {os.getpid()}", encoding="utf-8")
    except Timeout:
        who = f" ({holder.read_text(encoding='utf-8')})" if holder.is_file() else ""
        raise UserError(
            f"{folder} is being written by another process{who}: wait for it, or name another folder"
        ) from None
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    return lock


# What `lock_folder` leaves in a folder.
LOCK_FILES = frozenset({".lock", ".lock-holder"})


class NewerSchema(UserError):
    """A file of a newer version of this program."""


def check_schema_version(path: Path, version: int, newest: int) -> None:
    """Raise NewerSchema if a file was written by a newer version of this program than can read it."""
    if version > newest:
        raise NewerSchema(f"{path}: schema version {version}; this gtpo reads up to {newest}. Upgrade gtpo")


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level with dotted keys; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        flat |= flatten(inner, name) if isinstance(inner, Mapping) and inner else {name: inner}
    return flat
