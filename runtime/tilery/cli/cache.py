"""``tilery cache``: the store of compiled kernels; how much is in it, whether it is whole, and moving it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .. import policy
from ..errors import InvalidInput, TileryError
from ..store import Entry, Store, archive, maintain, store_for
from ..store.bounds import Limits
from ..store.entry import BadEntry, key_of
from ..store.level import Level
from .output import Json, console, mib, print_json, progress, styled, table

DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done, and do nothing.")]
File = Annotated[Path, Argument(help="The archive: a plain tar.")]
HEADER_BYTES = 64 << 10

app = typer.Typer(no_args_is_help=True, help="Look after the store of compiled kernels.", rich_markup_mode=None)


def opened() -> tuple[Store, Level]:
    """The store of the current policy, and its level on disk.

    Raises:
        InvalidInput: the policy keeps nothing on disk.
        TileryError: the folder cannot be used.
    """
    settings = policy.current()
    if settings.store is None:
        raise InvalidInput("The store is off, so there is nothing to look after: set TILERY_STORE to user or a folder.")
    store = store_for(settings)
    if store.user is None:
        raise TileryError(
            f"The store cannot be used: {store.why_off}. "
            "Set TILERY_STORE to a folder of yours that only you can write, or correct that."
        )
    return store, store.user


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell a fault of the disk in one line."""
    try:
        yield
    except OSError as error:
        raise TileryError(f"{what} failed: {error}") from error


def _used(level: Level) -> dict[str, Any]:
    found = maintain.usage(level)
    kinds = {kind: {"entries": found.entries[kind], "bytes": found.bytes[kind]} for kind in found.entries}
    return {
        "path": str(level.root),
        "entries": sum(found.entries.values()),
        "bytes": sum(found.bytes.values()),
        "kinds": kinds,
        "leftovers": found.leftovers,
        "quarantined": found.quarantined,
        "failed": found.failed,
        "other_versions": found.others,
    }


@app.command()
def du(json: Json = False) -> None:
    """Show how much is in the store and in its seeds."""
    store, user = opened()
    data = _used(user) | {"max_bytes": store.limits.bytes, "max_entries": store.limits.entries}
    data["seeds"] = [_used(seed) for seed in store.seeds]
    data["refused"] = {str(path): why for path, why in store.refused.items()}
    if json:
        print_json(data)
        return
    shown = table("", ("store", "kind", "entries", "size"), right=("entries", "size"))
    for row in (data, *data["seeds"]):
        for kind, amount in row["kinds"].items():
            shown.add_row(row["path"], kind, str(amount["entries"]), mib(amount["bytes"]))
    screen = console()
    screen.print(shown)
    screen.print(f"{data['entries']} of at most {data['max_entries']} entries")
    screen.print(f"{mib(data['bytes'])} of at most {mib(data['max_bytes'])}")
    aside = f"{data['quarantined']} broken entries and {data['failed']} failed compiles are kept for you to look at"
    screen.print(f"{aside}, {data['leftovers']} unfinished files")
    for name in data["other_versions"]:
        screen.print(f"{user.root / name} is of another version of tilery: delete it if you use that no more.")
    for path, why in data["refused"].items():
        screen.print(f"the seed {path} is not used: {why}", style="yellow", soft_wrap=True)


def _described(entry: Entry, level: Level) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": entry.kind, "digest": entry.digest, "bytes": entry.bytes}
    row |= {"used": entry.used, "store": str(level.root), "path": str(entry.path), "key": None}
    try:
        row["key"] = dict(key_of(level.read(entry.path, HEADER_BYTES)[0]).fields)
    except (BadEntry, OSError) as error:
        row["fault"] = str(error)
    return row


@app.command()
def ls(json: Json = False) -> None:
    """List the entries, the most recently used first. They are not verified."""
    store, user = opened()
    levels = (*store.seeds, user)
    rows = [_described(entry, level) for level in levels for entry in level.entries()]
    rows.sort(key=lambda row: (-row["used"], row["digest"]))
    if json:
        print_json({"entries": rows})
        return
    columns = ("digest", "kind", "of", "arch", "compiler", "size", "last used", "store")
    shown = table("", columns, right=("size",))
    for row in rows:
        key = row["key"] or {}
        of = key.get("variant") or key.get("op") or styled("error")
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
        details = (key.get("arch", ""), key.get("nvrtc", ""), mib(row["bytes"]), used, row["store"])
        shown.add_row(row["digest"][:12], row["kind"], of, *details)
    screen = console()
    screen.print(shown)
    screen.print(f"{len(rows)} entries, {mib(sum(row['bytes'] for row in rows))}")


@app.command()
def gc(
    max_mib: Annotated[float | None, Option(min=0, help="Bound in MiB; default: the policy's.")] = None,
    max_entries: Annotated[int | None, Option(min=0, help="Bound in entries; default: the policy's.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Delete what exceeds the bounds, least recently used first, and what killed writers left an hour ago or longer."""
    store, _ = opened()
    size = store.limits.bytes if max_mib is None else int(max_mib * 2**20)
    done = store.trim(Limits(size, store.limits.entries if max_entries is None else max_entries), dry_run)
    freed = sum(entry.bytes for entry in done.evicted)
    data = {
        "dry_run": dry_run,
        "evicted": [entry.digest for entry in done.evicted],
        "bytes": freed,
        "leftovers": done.leftovers,
        "kept": {"entries": done.kept_entries, "bytes": done.kept_bytes},
    }
    if json:
        print_json(data)
        return
    screen = console()
    screen.print(f"{_verb(dry_run)} {len(done.evicted)} entries ({mib(freed)}), {done.leftovers} unfinished files")
    screen.print(f"kept {done.kept_entries} entries ({mib(done.kept_bytes)})")


def _verb(dry_run: bool, done: str = "deleted", would: str = "would delete") -> str:
    return would if dry_run else done


@app.command()
def verify(dry_run: DryRun = False, json: Json = False) -> None:
    """Read every entry through. Broken ones are set aside in quarantine and made again when needed; exit code 1."""
    store, user = opened()
    levels, broken, count = (*store.seeds, user), [], 0
    for level in levels:
        entries = list(level.entries())
        count += len(entries)
        # Seeds are not ours to change.
        for entry, why in maintain.verify(level, progress(entries, "verifying"), dry_run or level is not user):
            broken.append({"digest": entry.digest, "path": str(entry.path), "reason": why})
    if json:
        print_json({"dry_run": dry_run, "entries": count, "broken": broken, "ok": not broken})
    else:
        screen = console()
        for row in broken:
            screen.print(f"{row['path']}: {row['reason']}", style="red", soft_wrap=True)
        screen.print(f"{count} entries, {len(broken)} broken")
    if broken:
        raise typer.Exit(1)


@app.command()
def clear(dry_run: DryRun = False, json: Json = False) -> None:
    """Empty the store: entries, quarantine and failed compiles of this version of tilery, and nothing else."""
    _, user = opened()
    done = maintain.clear(user, dry_run)
    if json:
        rest = {"entries": done.entries, "bytes": done.bytes, "others": done.others}
        print_json({"path": str(user.root), "dry_run": dry_run} | rest | {"left": [str(path) for path in done.left]})
        return
    screen = console()
    what = f"{done.entries} entries ({mib(done.bytes)}) and {done.others} other files and folders"
    screen.print(f"{_verb(dry_run)} {what} in {user.base}", soft_wrap=True)
    for path in done.left:
        screen.print(f"left alone: {path}", soft_wrap=True)


@app.command("export")
def export_(file: File, json: Json = False) -> None:
    """Write the whole entries of the store to one file, for `tilery cache import` on this or another machine."""
    _, user = opened()
    with _told("The export"):
        done = archive.export(user, progress(list(user.entries()), "reading"), file)
    if json:
        print_json({"file": str(file), "entries": done.entries, "bytes": done.bytes, "skipped": done.skipped})
        return
    screen = console()
    _print_skipped(done.skipped)
    screen.print(f"{done.entries} entries ({mib(done.bytes)}) to {file}", soft_wrap=True)


@app.command("import")
def import_(file: File, dry_run: DryRun = False, json: Json = False) -> None:
    """Take in the entries of an archive, each of them verified. Bad ones are left out and reported; exit code 1."""
    store, user = opened()
    with _told("The import"):
        done = archive.take_in(user, file, store.limits, dry_run)
    evicted = 0 if dry_run else len(store.trim().evicted)
    if json:
        rows = {"added": done.added, "present": done.present, "bad": done.bad}
        print_json({"file": str(file), "dry_run": dry_run} | rows | {"evicted": evicted, "ok": not done.bad})
    else:
        _print_skipped(f"{name}: {why}" for name, why in done.bad.items())
        verb = _verb(dry_run, "added", "would add")
        bad, more = len(done.bad), f", {evicted} evicted to keep the bounds" if evicted else ""
        console().print(f"{verb} {len(done.added)} entries, {len(done.present)} were there, {bad} bad{more}")
    if done.bad:
        raise typer.Exit(1)


def _print_skipped(lines: Iterable[str]) -> None:
    screen = console(stderr=True)
    for line in lines:
        screen.print(f"skipped {line}", style="yellow", soft_wrap=True)
