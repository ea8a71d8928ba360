"""``tilery doctor``: what it reports, and that each thing that is wrong shows, with advice and the right exit code."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime import simulated
from tilery import device, jit, policy, store
from tilery.cli import doctor
from tilery.errors import PackError
from tilery.pack import builtin
from tilery.policy import VARIABLES, Policy

FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + b"made up."
NVRTC_GONE = jit.Toolchain(why_none="NVRTC cannot be loaded (gone): pip install nvidia-cuda-nvrtc")


@pytest.fixture(autouse=True)
def hidden(no_gpu):
    """The tests add the GPUs that they need."""


def report(result):
    return json.loads(result.stdout)


def findings(result, check):
    return [
        (row["severity"], row["text"], row["advice"]) for row in report(result)["findings"] if row["check"] == check
    ]


def test_a_real_process_on_this_installation(spawn, tmp_path):
    done = spawn("doctor", "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, done.stderr, data["ok"]) == (0, "", True)
    assert data["driver"]["version"] is None
    assert data["gpus"] == []
    assert data["nvrtc"]["version"] == jit.toolchain().version
    assert Path(data["nvrtc"]["path"]).is_file()
    assert data["nvrtc"]["archs"] == list(jit.toolchain().archs)
    assert data["store"]["path"] == str(tmp_path / "store")
    assert data["variables"].keys() == VARIABLES.keys()
    assert data["variables"]["TILERY_STORE"]["value"] == str(tmp_path / "store")
    assert [row["check"] for row in data["findings"] if row["severity"] == "error"] == []


def test_images_are_those_of_the_pack(run):
    rows = {row["arch"]: row for row in report(run("doctor", "--json"))["images"]}
    pack = builtin()
    assert rows.keys() == pack.images.keys()
    for arch, images in pack.images.items():
        assert rows[arch]["images"] == len(images)
        assert rows[arch]["variants"] == sum(len(image.variants) for image in images.values())
        assert rows[arch]["bytes"] == sum(image.path.stat().st_size for image in images.values())
        assert rows[arch]["status"] == pack.archs[arch].status
        assert rows[arch]["broken"] == 0


def add_image(package: Path) -> Path:
    """One more image of an arch, as a build would have made it."""
    path = package / "images" / "sm_80" / "made_up.fatbin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FATBIN)
    row = {
        "sha256": hashlib.sha256(FATBIN).hexdigest(),
        "bytes": len(FATBIN),
        "variants": ["gemm_naive_f32_any_16x16x1"],
    }
    with (package / "_table.py").open("a") as table:
        table.write(f"\nIMAGES.setdefault('sm_80', {{}})['made_up'] = {row!r}\n")
    return path


def test_a_whole_image_is_well(spawn, package):
    add_image(package)
    done = spawn("doctor", "--json", PYTHONPATH=str(package.parent))
    arch = next(row for row in json.loads(done.stdout)["images"] if row["arch"] == "sm_80")
    assert (done.returncode, arch["broken"]) == (0, 0)
    assert arch["images"] == len(builtin().images.get("sm_80", {})) + 1


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.write_bytes(FATBIN[:-3]), "truncated"),
        (lambda path: path.write_bytes(b"GARBAGE!" * 4), "is not a fatbin"),
        (lambda path: path.write_bytes(FATBIN[:-1] + b"!"), "SHA-256"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["truncated", "foreign", "other bytes", "missing"],
)
def test_a_broken_image_is_an_error(spawn, package, damage, text):
    path = add_image(package)
    damage(path)
    done = spawn("doctor", "--json", PYTHONPATH=str(package.parent))
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"]) == (1, False)
    assert next(row for row in data["images"] if row["arch"] == "sm_80")["broken"] == 1
    (wrong,) = (row for row in data["findings"] if row["check"] == "images" and row["severity"] == "error")
    assert text in wrong["text"]
    assert str(path) in wrong["text"]
    assert "reinstall" in wrong["text"]
    assert spawn("doctor", PYTHONPATH=str(package.parent)).returncode == 1


def test_a_pack_that_does_not_fit_together(run, monkeypatch):
    def fail():
        raise PackError("the pack is inconsistent")

    monkeypatch.setattr(doctor, "builtin", fail)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert findings(result, "images")[0][:2] == ("error", "the pack is inconsistent")


def test_a_pack_without_images_is_a_warning(run, monkeypatch):
    monkeypatch.setattr(doctor, "builtin", lambda: simulated.pack(IMAGES={}))
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert findings(result, "images")[0][:2] == (
        "warning",
        "The pack has no image: every kernel is compiled at first use.",
    )


def test_no_gpu_is_a_warning_with_the_reason(run):
    result = run("doctor")
    assert result.exit_code == 0
    assert "warning: No NVIDIA GPU was found: this test hides them." in result.stdout
    assert "all that must work does" in result.stdout


def show_gpus(monkeypatch, *gpus):
    numbered = tuple(replace(gpu, ordinal=i, driver_version=13000) for i, gpu in enumerate(gpus))
    monkeypatch.setattr(device, "devices", lambda: numbered)
    monkeypatch.setattr(
        device, "call", lambda function, *args: {"cuDeviceGet": 0, "cuDeviceTotalMem": 80 << 30}[function]
    )
    monkeypatch.setattr(doctor, "builtin", simulated.pack)
    monkeypatch.setattr(doctor.image, "read", lambda image: FATBIN)
    return numbered


def test_gpus_and_the_image_that_serves_each(run, monkeypatch):
    cards = [simulated.DEVICES[cc] for cc in [(9, 0), (8, 9), (13, 0)]]
    show_gpus(monkeypatch, *cards)
    result = run("doctor", "--json")
    rows = report(result)["gpus"]
    assert result.exit_code == 0
    assert [(row["ordinal"], row["name"], row["cc"]) for row in rows] == [
        (0, "GPU of 9.0", [9, 0]),
        (1, "GPU of 8.9", [8, 9]),
        (2, "GPU of 13.0", [13, 0]),
    ]
    assert [row["arch"] for row in rows] == ["sm_90a", "sm_80", "compute_80"]
    assert {row["status"] for row in rows} == {"compiled"}
    assert {row["memory_bytes"] for row in rows} == {80 << 30}
    assert [text[:5] for _, text, _ in findings(result, "gpus")] == ["GPU 2"]


@pytest.mark.parametrize(("jit_mode", "severity", "code"), [("auto", "warning", 0), ("off", "error", 1)])
def test_a_gpu_without_image(run, monkeypatch, jit_mode, severity, code):
    show_gpus(monkeypatch, simulated.H200)
    monkeypatch.setattr(doctor, "builtin", lambda: simulated.pack(IMAGES={}))
    policy.use(replace(policy.current(), jit=jit_mode))
    result = run("doctor", "--json")
    assert result.exit_code == code
    assert findings(result, "gpus")[0][0] == severity
    assert "pip install" in findings(result, "gpus")[0][2]


def test_an_old_driver_is_an_error(run, monkeypatch):
    (gpu,) = show_gpus(monkeypatch, simulated.H200)
    monkeypatch.setattr(device, "devices", lambda: (replace(gpu, driver_version=12080),))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert findings(result, "driver") == [("error", "The driver supports CUDA 12.8 only.", doctor.DRIVER_ADVICE)]


@pytest.mark.parametrize(("jit_mode", "severity", "code"), [("auto", "error", 1), ("off", "warning", 0)])
def test_no_nvrtc(run, monkeypatch, jit_mode, severity, code):
    monkeypatch.setattr(jit, "loaded", lambda: NVRTC_GONE)
    policy.use(replace(policy.current(), jit=jit_mode))
    result = run("doctor", "--json")
    assert result.exit_code == code
    assert findings(result, "nvrtc")[0][:2] == (severity, NVRTC_GONE.why_none)


def test_an_nvrtc_that_does_not_compile(run, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", "this is no CUDA")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "failed on probe" in findings(result, "nvrtc")[0][1]


def test_an_unwritable_store_is_an_error(spawn, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = spawn("doctor", "--json", TILERY_STORE=str(tmp_path / "file" / "store"))
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"], data["store"]["usable"]) == (1, False, False)
    (wrong,) = (row for row in data["findings"] if row["check"] == "store")
    assert str(tmp_path / "file") in wrong["text"]
    assert "TILERY_STORE" in wrong["advice"]


def test_a_store_that_others_can_write_is_an_error(run, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    policy.use(Policy(store=shared))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "others can write it" in findings(result, "store")[0][1]


def test_a_full_disk_shows(run, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "No space left on device" in findings(result, "store")[0][1]


def test_what_is_in_the_store(run, tmp_path):
    root = tmp_path / "store"
    kept = store.open_store(root)
    for index in range(3):
        kept.put(store.Key("binary", (("index", str(index)),)), b"code" * 100)
    data = report(run("doctor", "--json"))["store"]
    entries = [path for path in root.rglob("*") if path.is_file()]
    assert (data["entries"], data["bytes"]) == (3, sum(path.stat().st_size for path in entries))
    assert (data["quarantined"], data["failed"]) == (0, 0)
    entries[0].write_bytes(b"broken")
    kept.get(
        next(key for i in range(3) if (key := store.Key("binary", (("index", str(i)),))).digest == entries[0].name)
    )
    kept.keep_failure("kernel", {"log.txt": "no"})
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert (report(result)["store"]["entries"], report(result)["store"]["quarantined"]) == (2, 1)
    assert [severity for severity, _, _ in findings(result, "store")] == ["warning", "warning"]


def test_the_store_can_be_off(run):
    policy.use(Policy(store=None))
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert report(result)["store"]["reason"] == "off"
    assert report(result)["variables"]["TILERY_STORE"]["value"] == "off"


def test_a_wrong_value_of_a_variable(spawn, tmp_path):
    done = spawn("doctor", "--json", TILERY_JIT="of", HOME=str(tmp_path / "home"))
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"]) == (1, False)
    (wrong,) = (row for row in data["findings"] if row["severity"] == "error")
    assert wrong["check"] == "variables"
    assert "did you mean 'off'" in wrong["text"]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("name", "severity", "code"), [("gemm_naive_f32_any_16x16x1", "warning", 0), ("gemm_nave_f32", "error", 1)]
)
def test_a_forced_variant(run, name, severity, code):
    policy.use(replace(policy.current(), force_variant=name))
    result = run("doctor", "--json")
    assert result.exit_code == code
    ((found, text, _),) = findings(result, "variables")
    assert found == severity
    assert name in text


def test_nvtx_without_its_package(run, monkeypatch):
    found = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "nvtx" else found(name))
    policy.use(replace(policy.current(), nvtx=True))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    ((severity, text, advice),) = findings(result, "variables")
    assert severity == "error"
    assert "nvtx is not installed" in text
    assert "tilery[nvtx]" in advice
    monkeypatch.setattr(doctor, "_version", lambda name: "0.2" if name == "nvtx" else found(name))
    assert run("doctor", "--json").exit_code == 0


def test_a_trace_without_a_folder(run, tmp_path):
    policy.use(replace(policy.current(), trace=tmp_path / "none" / "trace"))
    result = run("doctor", "--json")
    assert result.exit_code == 0
    ((severity, text, _),) = findings(result, "variables")
    assert (severity, str(tmp_path / "none" / "trace") in text) == ("warning", True)
    (tmp_path / "none").mkdir()
    assert findings(run("doctor", "--json"), "variables") == []


def test_a_missing_package(run, monkeypatch):
    found = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "cuda-core" else found(name))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert findings(result, "packages") == [
        ("error", "The package cuda-core is not installed.", "`pip install cuda-core`")
    ]
    assert report(result)["packages"]["numpy"] == found("numpy")
