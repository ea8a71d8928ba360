"""Variant to CUDA source: the one renderer, for the build and for the JIT alike."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, meta

from . import archs as arch_names
from .errors import RenderError, nearest
from .expand import expand
from .load import TEMPLATES, Spec
from .variant import Variant

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', re.MULTILINE)
_MARK = ", generated: edit "


@dataclass(frozen=True, slots=True)
class Written:
    """What a call of write() did: counts of files, and the paths that changed or went away."""

    variants: int
    units: int
    changed: tuple[Path, ...]
    removed: tuple[Path, ...]


def render(variant: Variant, templates: Path = TEMPLATES) -> str:
    """The CUDA source of a variant, from ``<family>.cu.j2`` with ``v`` the variant.

    Raises:
        RenderError: no such template, a fault in it, or a name that the variant does not have.
    """
    name = _template(variant.family)
    try:
        text = _environment(templates).get_template(name).render(v=variant)
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        keys = ", ".join(key for key, _ in variant.config)
        raise _fault(error, name, f"variant {variant.name} with Config keys {keys}", templates) from None
    return f"// {variant.name}{_MARK}{name}\n{text.rstrip()}\n"


def headers(family: str, templates: Path = TEMPLATES) -> dict[str, str]:
    """Every file that a family's source includes, directly or not: name in ``#include "name"`` to its text."""
    found: dict[str, str] = {}
    wanted = [(name, by) for by, text in _sources(family, templates).items() for name in _INCLUDE.findall(text)]
    while wanted:
        name, by = wanted.pop()
        if name not in found:
            found[name] = _read_header(name, by, templates)
            wanted += [(inner, name) for inner in _INCLUDE.findall(found[name])]
    return dict(sorted(found.items()))


def host_files(templates: Path = TEMPLATES) -> dict[str, str]:
    """What the host device adds to every source: name to text."""
    files = sorted(path for path in (templates / arch_names.HOST).glob("*") if path.suffix in (".h", ".cpp"))
    return {f"{arch_names.HOST}/{path.name}": path.read_text(encoding="utf-8") for path in files}


def content_hash(variant: Variant, templates: Path = TEMPLATES, *, host: bool = False) -> str:
    """SHA-256 in hex of a variant's source and of all that it includes, on the host device or on GPUs."""
    digest = hashlib.sha256()
    files = headers(variant.family, templates) | (host_files(templates) if host else {})
    for part in (render(variant, templates), *sum(files.items(), ())):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def plan(spec: Spec, archs: Iterable[str], tier: str) -> dict[str, dict[str, list[Variant]]]:
    """What to compile: arch to image to its variants."""
    images: dict[str, dict[str, list[Variant]]] = {}
    for arch in archs:
        images[arch] = {}
        for variant in expand(spec, arch, tier).variants:
            images[arch].setdefault(variant.image, []).append(variant)
    return images


def write(spec: Spec, archs: Iterable[str], tier: str, out: Path, templates: Path = TEMPLATES) -> Written:
    """Write ``src/<variant>.cu``, ``units/<arch>/<image>.cu`` and ``plan.cmake`` under ``out``.

    A file whose text is already right is left alone; generated files that nothing asks for any more are deleted.
    """
    out = Path(out)
    images = plan(spec, archs, tier)
    variants = {variant.name: variant for units in images.values() for group in units.values() for variant in group}
    files = {Path("src", f"{name}.cu"): render(variant, templates) for name, variant in variants.items()}
    for arch, units in images.items():
        for image, group in units.items():
            files[_unit(arch, image)] = _unit_text(arch, image, group)
    units_count = len(files) - len(variants)
    files[Path("plan.cmake")] = _cmake(images, tier, templates)
    changed = tuple(path for path, text in files.items() if _write_if_changed(out / path, text))
    return Written(len(variants), units_count, changed, _remove_stale(out, files))


def _template(family: str) -> str:
    return f"{family}.cu.j2"


@lru_cache(maxsize=8)
def _environment(templates: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _fault(error: Exception, name: str, asked: str, templates: Path) -> RenderError:
    if isinstance(error, TemplateNotFound):
        there = [path.name for path in templates.glob("*.j2")]
        return RenderError(f"{asked}: no template {error.name} in {templates}; {nearest(str(error.name), there)}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name
    if isinstance(error, TemplateError) and hasattr(error, "lineno"):
        place = f"{Path(getattr(error, 'filename', None) or name).name}:{error.lineno}"
    return RenderError(f"{asked}: {place}: {type(error).__name__}: {error}")


def _sources(family: str, templates: Path) -> dict[str, str]:
    """A family's template with the templates that it includes: name to text."""
    environment = _environment(templates)
    found: dict[str, str] = {}
    wanted = [_template(family)]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = (templates / name).read_text(encoding="utf-8")
            wanted += filter(None, meta.find_referenced_templates(environment.parse(found[name], name)))
        except OSError:
            raise _fault(TemplateNotFound(name), name, f"family {family}", templates) from None
        except TemplateError as error:
            raise _fault(error, name, f"family {family}", templates) from None
    return found


def _read_header(name: str, by: str, templates: Path) -> str:
    try:
        return (templates / name).read_text(encoding="utf-8")
    except OSError:
        there = [path.name for path in templates.iterdir() if path.suffix in (".cuh", ".h")]
        hint = f"{nearest(name, there)}; headers of CUDA are included with <>"
        raise RenderError(f'{by}: #include "{name}" is not in {templates}; {hint}') from None


def _unit(arch: str, image: str) -> Path:
    return Path("units", arch, f"{image}.cu")


def _unit_text(arch: str, image: str, variants: list[Variant]) -> str:
    lines = [f"// {image} for {arch}{_MARK}variants.toml"]
    lines += [f'#include "../../src/{variant.name}.cu"' for variant in variants]
    return "\n".join(lines) + "\n"


def _cmake(images: Mapping[str, Mapping[str, list[Variant]]], tier: str, templates: Path) -> str:
    gpus = {arch: group for arch, group in images.items() if arch != arch_names.HOST}
    units = [
        f"{arch}|{image}|{_unit(arch, image).as_posix()}|{arch_names.gencode(arch)}"
        for arch, group in gpus.items()
        for image in group
    ]
    host = [f"{image}|{_unit(arch_names.HOST, image).as_posix()}" for image in images.get(arch_names.HOST, ())]
    sources = sorted(path.resolve().as_posix() for path in templates.rglob("*") if path.is_file())
    return "".join(
        [
            "# Generated: edit variants.toml. A unit is arch|image|file|what follows -gencode, of host image|file.\n",
            f'set(TILERY_TIER "{tier}")\n',
            _cmake_list("TILERY_ARCHS", images),
            _cmake_list("TILERY_UNITS", units),
            _cmake_list("TILERY_HOST_UNITS", host),
            _cmake_list("TILERY_HEADERS", sources),
        ]
    )


def _cmake_list(name: str, items: Iterable[str]) -> str:
    escaped = [re.sub(r'([\\"$;])', r"\\\1", item) for item in items]
    return "\n  ".join([f"set({name}", *(f'"{item}"' for item in escaped)]) + ")\n"


def _write_if_changed(path: Path, text: str) -> bool:
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


def _remove_stale(out: Path, wanted: Iterable[Path]) -> tuple[Path, ...]:
    keep = {out / path for path in wanted}
    there = sorted([*out.glob("src/*.cu"), *out.glob("units/*/*.cu")])
    stale = tuple(path for path in there if path not in keep and _generated(path))
    for path in stale:
        path.unlink()
        if path.parent.parent.name == "units" and not any(path.parent.iterdir()):
            path.parent.rmdir()
    return tuple(path.relative_to(out) for path in stale)


def _generated(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return _MARK in file.readline()
